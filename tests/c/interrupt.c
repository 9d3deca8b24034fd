/* Signals and cancellation in the two calls that wait for events: as in a read of a descriptor of the kernel. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define TIMEOUT_SECONDS 60
#define PAUSE_MICROS 5000
#define SIGNALS 20

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static atomic_int handled;
static atomic_bool has_returned, is_unwound;
static int returned, error;

static void on_signal(int number)
{
    (void)number;
    handled++;
}

static void on_cancel(void *unused)
{
    (void)unused;
    is_unwound = true;
}

static void *wait_for_completion(void *unused)
{
    struct ibv_cq *cq;
    void *cookie;
    pthread_cleanup_push(on_cancel, unused);
    returned = ibv_get_cq_event(channel, &cq, &cookie);
    error = errno;
    has_returned = true;
    pthread_cleanup_pop(0);
    return NULL;
}

static void *wait_for_async_event(void *unused)
{
    struct ibv_async_event event;
    pthread_cleanup_push(on_cancel, unused);
    returned = ibv_get_async_event(context, &event);
    error = errno;
    has_returned = true;
    pthread_cleanup_pop(0);
    return NULL;
}

static pthread_t start(void *(*wait)(void *), int flags)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
    CHECK(!sigaction(SIGUSR1, &action, NULL));
    handled = 0;
    has_returned = is_unwound = false;
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, wait, NULL));
    return thread;
}

static void interrupt(void *(*wait)(void *))
{
    pthread_t thread = start(wait, 0);
    /* A signal before the call waits has no effect, therefore more than one. */
    while (!has_returned) {
        pthread_kill(thread, SIGUSR1);
        usleep(PAUSE_MICROS);
    }
    CHECK(!pthread_join(thread, NULL) && returned == -1 && error == EINTR);

    thread = start(wait, SA_RESTART);
    for (int sent = 0; sent < SIGNALS; sent++) {
        CHECK(!pthread_kill(thread, SIGUSR1));
        while (handled <= sent)
            usleep(PAUSE_MICROS);
    }
    void *result;
    CHECK(!has_returned && !pthread_cancel(thread) && !pthread_join(thread, &result));
    CHECK(result == PTHREAD_CANCELED && is_unwound && !has_returned);
}

int main(void)
{
    alarm(TIMEOUT_SECONDS);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    context = ibv_open_device(list[0]);
    channel = ibv_create_comp_channel(context);
    CHECK(context && channel);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, channel, 0);
    CHECK(cq);
    interrupt(wait_for_completion);
    interrupt(wait_for_async_event);
    CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_close_device(context));
    puts("all checks passed");
    return 0;
}
