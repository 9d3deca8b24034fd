/* A library that asks for the next definition of its own function: there is none, unless the call seems to come from
 * another library before this one. */

#define _GNU_SOURCE
#include <dlfcn.h>

int other(void);
void *find_next_of_other(void);

int other(void)
{
    return 0;
}

void *find_next_of_other(void)
{
    /* No tail call, or the return address would be that of the caller. */
    void *volatile next = dlvsym(RTLD_NEXT, "other", "OTHER_1");
    return next;
}
