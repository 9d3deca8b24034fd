/* A check of the C test programs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* If `condition` is false, prints it with its place and errno, and ends the program with status 1. */
#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno));    \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)
