/* A lock that the memif driver lacks.
 *
 * The driver handles control messages on EAL's interrupt thread. When a peer disconnects, that thread unmaps the rings
 * and buffers, possibly during a burst or a stop on another thread, which then crashes. Besides, the driver never
 * closes a listening socket, whose handler stays registered for memory that is freed.
 *
 * build.rs redirects the driver's calls for interrupt handlers to the functions here, so that a handler runs only
 * while no burst and no control operation does. Each queue has a flag of its own, because queues of one port may burst
 * on several threads at a time. This costs a burst two writes to its own queue's cache line. The barrier between a
 * burst's write and its read of `handler_waits` is made by the handlers, which are rare, for all processors at once
 * (membarrier, Linux 4.14). A barrier in each burst would wait for the last burst's writes to the rings.
 *
 * Where DPDK is linked as shared libraries the driver cannot be redirected, and none of this has an effect. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <linux/membarrier.h>
#include <sys/queue.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rte_interrupts.h>
#include <rte_pause.h>

#include "shim.h"

/* Longer than any processor delays a write: replaces a membarrier that was registered and is now refused. */
#define FENCE_USEC 1000
/* A wait for another thread sleeps at each SPINS_PER_SLEEP-th look: a thread of the scheduling policy SCHED_FIFO would
 * otherwise keep the processor from the thread that it waits for. */
#define SPINS_PER_SLEEP 1024
#define SLEEP_USEC 100

struct shim_burst_flag {
	_Alignas(64) atomic_bool busy;
	LIST_ENTRY(shim_burst_flag) next;
};

/* Held by handlers and by control operations, and while the list of flags changes. */
static pthread_mutex_t control_lock = PTHREAD_MUTEX_INITIALIZER;
/* Whether a handler is waiting for bursts to end, or running. */
static atomic_bool handler_waits;
/* The flags of all queues of memif ports. */
static LIST_HEAD(, shim_burst_flag) bursts = LIST_HEAD_INITIALIZER(bursts);
/* Whether handlers make the barriers. Set before the first handler is registered, and so before the first burst. */
static atomic_bool handlers_fence;

/* A registered handler. */
struct guarded {
	LIST_ENTRY(guarded) next;
	const struct rte_intr_handle *handle;
	rte_intr_callback_fn handler;
	rte_intr_unregister_callback_fn unregistered;
	void *arg;
	/* Set if the handler is unregistered while it waits for the lock. */
	atomic_bool cancelled;
};

static LIST_HEAD(, guarded) handlers = LIST_HEAD_INITIALIZER(handlers);
static pthread_mutex_t handlers_lock = PTHREAD_MUTEX_INITIALIZER;

struct shim_burst_flag *shim_guard_flag_new(void)
{
	struct shim_burst_flag *flag = aligned_alloc(_Alignof(struct shim_burst_flag), sizeof(*flag));

	if (flag == NULL)
		return NULL;
	atomic_init(&flag->busy, false);
	pthread_mutex_lock(&control_lock);
	LIST_INSERT_HEAD(&bursts, flag, next);
	pthread_mutex_unlock(&control_lock);
	return flag;
}

void shim_guard_flag_free(struct shim_burst_flag *flag)
{
	pthread_mutex_lock(&control_lock);
	LIST_REMOVE(flag, next);
	pthread_mutex_unlock(&control_lock);
	free(flag);
}

bool shim_guard_burst_begin(struct shim_burst_flag *flag)
{
	/* Burst and handler each write their own flag before they read the other's, so at least one reads it set. */
	if (atomic_load_explicit(&handlers_fence, memory_order_relaxed)) {
		atomic_store_explicit(&flag->busy, true, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		if (!atomic_load_explicit(&handler_waits, memory_order_acquire))
			return true;
	} else {
		atomic_store_explicit(&flag->busy, true, memory_order_seq_cst);
		if (!atomic_load_explicit(&handler_waits, memory_order_seq_cst))
			return true;
	}
	atomic_store_explicit(&flag->busy, false, memory_order_release);
	return false;
}

void shim_guard_burst_end(struct shim_burst_flag *flag)
{
	atomic_store_explicit(&flag->busy, false, memory_order_release);
}

void shim_guard_lock(void)
{
	pthread_mutex_lock(&control_lock);
}

bool shim_guard_try_lock(void)
{
	return pthread_mutex_trylock(&control_lock) == 0;
}

void shim_guard_unlock(void)
{
	pthread_mutex_unlock(&control_lock);
}

static bool membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0) == 0;
}

static void relax(unsigned int *calls)
{
	if (++*calls % SPINS_PER_SLEEP == 0)
		usleep(SLEEP_USEC);
	else
		rte_pause();
}

static void run_handler(void *arg)
{
	struct guarded *guarded = arg;
	struct shim_burst_flag *flag;
	unsigned int calls = 0;

	pthread_mutex_lock(&control_lock);
	if (!atomic_load(&guarded->cancelled)) {
		atomic_store_explicit(&handler_waits, true, memory_order_seq_cst);
		if (atomic_load(&handlers_fence) && !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED))
			usleep(FENCE_USEC);
		LIST_FOREACH(flag, &bursts, next)
			while (atomic_load_explicit(&flag->busy, memory_order_seq_cst))
				relax(&calls);
		guarded->handler(guarded->arg);
		atomic_store_explicit(&handler_waits, false, memory_order_release);
	}
	pthread_mutex_unlock(&control_lock);
}

static void run_unregistered(struct rte_intr_handle *handle, void *arg)
{
	struct guarded *guarded = arg;

	guarded->unregistered(handle, guarded->arg);
	free(guarded);
}

/* Removes a registration from the list and returns it. With a null handler, any of the handle. */
static struct guarded *take(const struct rte_intr_handle *handle, rte_intr_callback_fn handler)
{
	struct guarded *guarded;

	pthread_mutex_lock(&handlers_lock);
	LIST_FOREACH(guarded, &handlers, next) {
		if (guarded->handle == handle && (handler == NULL || guarded->handler == handler)) {
			LIST_REMOVE(guarded, next);
			break;
		}
	}
	pthread_mutex_unlock(&handlers_lock);
	return guarded;
}

static void put(struct guarded *guarded)
{
	pthread_mutex_lock(&handlers_lock);
	LIST_INSERT_HEAD(&handlers, guarded, next);
	pthread_mutex_unlock(&handlers_lock);
}

int shim_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn handler, void *arg);
int shim_intr_callback_unregister(const struct rte_intr_handle *handle, rte_intr_callback_fn handler, void *arg);
int shim_intr_callback_unregister_pending(const struct rte_intr_handle *handle, rte_intr_callback_fn handler,
					  void *arg, rte_intr_unregister_callback_fn unregistered);
void shim_intr_instance_free(struct rte_intr_handle *handle);

int shim_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn handler, void *arg)
{
	struct guarded *guarded = calloc(1, sizeof(*guarded));
	int ret;

	if (guarded == NULL)
		return -ENOMEM;
	guarded->handle = handle;
	guarded->handler = handler;
	guarded->arg = arg;
	if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
		atomic_store(&handlers_fence, true);
	put(guarded);
	ret = rte_intr_callback_register(handle, run_handler, guarded);
	if (ret < 0 && take(handle, handler) == guarded)
		free(guarded);
	return ret;
}

int shim_intr_callback_unregister(const struct rte_intr_handle *handle, rte_intr_callback_fn handler, void *arg)
{
	struct guarded *guarded = take(handle, handler);
	int ret;

	(void)arg;
	if (guarded == NULL)
		return -ENOENT;
	ret = rte_intr_callback_unregister(handle, run_handler, guarded);
	if (ret > 0)
		free(guarded);
	else
		put(guarded);
	return ret;
}

/* Unregisters a handler that may be running or waiting for the lock; `unregistered` is called once it is neither. */
static int cancel(struct guarded *guarded, rte_intr_unregister_callback_fn unregistered)
{
	const struct rte_intr_handle *handle = guarded->handle;
	unsigned int calls = 0;
	int ret;

	guarded->unregistered = unregistered;
	atomic_store(&guarded->cancelled, true);
	/* Each call fails with EAGAIN in one of two states, and the interrupt thread changes the state. */
	for (;;) {
		ret = rte_intr_callback_unregister_pending(handle, run_handler, guarded, run_unregistered);
		if (ret != -EAGAIN)
			return ret;
		ret = rte_intr_callback_unregister(handle, run_handler, guarded);
		if (ret > 0)
			run_unregistered((struct rte_intr_handle *)(uintptr_t)handle, guarded);
		if (ret != -EAGAIN)
			return ret;
		relax(&calls);
	}
}

int shim_intr_callback_unregister_pending(const struct rte_intr_handle *handle, rte_intr_callback_fn handler,
					  void *arg, rte_intr_unregister_callback_fn unregistered)
{
	struct guarded *guarded = take(handle, handler);

	(void)arg;
	return guarded == NULL ? -ENOENT : cancel(guarded, unregistered);
}

/* EAL passes its own copy of the handle, and frees the copy itself. */
static void close_instance(struct rte_intr_handle *handle, void *arg)
{
	shim_memif_close(rte_intr_fd_get(handle));
	rte_intr_instance_free(arg);
}

/* The driver frees the handle of a listening socket while its handler is registered and its descriptor open. */
void shim_intr_instance_free(struct rte_intr_handle *handle)
{
	struct guarded *guarded = handle == NULL ? NULL : take(handle, NULL);

	if (guarded == NULL) {
		rte_intr_instance_free(handle);
		return;
	}
	guarded->arg = handle;
	cancel(guarded, close_instance);
}
