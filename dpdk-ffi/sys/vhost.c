/* The notification of a vhost queue by its peer (kick).
 *
 * The driver has receive interrupts, but enables them without protection from the vhost library's own thread, which
 * frees the connection when the peer disconnects. Only in a burst the connection is protected: that thread waits for the
 * end of the bursts before it frees. Therefore a request of this crate runs inside a burst, in place of receiving:
 *
 *   shim_vhost_notify           driver, in a burst                        vhost library
 *   notes the request       ->  marks the queue as in use
 *                               shim_vhost_dequeue_burst executes the ->  enable or disable kicks
 *                               request, receives nothing
 *                               clears the mark
 *
 * build.rs redirects the driver's call of rte_vhost_dequeue_burst to the function here. Where DPDK is linked as shared
 * libraries the driver cannot be redirected, and vhost queues have no wake source. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <rte_pause.h>
#include <rte_vhost.h>

#include "shim.h"

/* The request that the next burst of this thread executes. */
static _Thread_local struct {
	bool is_pending;
	bool was_executed;
	bool enable;
	/* Gets a duplicate of the kick descriptor; NULL: is not needed. */
	int *kick_fd;
} request;

uint16_t shim_vhost_dequeue_burst(int vid, uint16_t queue, struct rte_mempool *pool, struct rte_mbuf **mbufs,
				  uint16_t count);

uint16_t shim_vhost_dequeue_burst(int vid, uint16_t queue, struct rte_mempool *pool, struct rte_mbuf **mbufs,
				  uint16_t count)
{
	struct rte_vhost_vring vring;

	if (!request.is_pending)
		return rte_vhost_dequeue_burst(vid, queue, pool, mbufs, count);
	request.is_pending = false;
	request.was_executed = true;
	rte_vhost_enable_guest_notification(vid, queue, request.enable);
	if (request.kick_fd != NULL && rte_vhost_get_vhost_vring(vid, queue, &vring) == 0 && vring.kickfd >= 0)
		*request.kick_fd = fcntl(vring.kickfd, F_DUPFD_CLOEXEC, 0);
	return 0;
}

bool shim_vhost_notify(uint16_t port, uint16_t queue, bool enable, int *kick_fd)
{
	struct rte_mbuf *none = NULL;

	request.is_pending = true;
	request.was_executed = false;
	request.enable = enable;
	request.kick_fd = kick_fd;
	/* Not executed while there is no connection. */
	rte_eth_rx_burst(port, queue, &none, 1);
	request.is_pending = false;
	return request.was_executed;
}

static int changed(uint16_t port, enum rte_eth_event_type event, void *fd, void *unused)
{
	uint64_t one = 1;

	(void)port;
	(void)event;
	(void)unused;
	/* Fails only if the descriptor is readable anyway. */
	return write((int)(intptr_t)fd, &one, sizeof(one)) < 0 ? -errno : 0;
}

static const enum rte_eth_event_type watched[] = { RTE_ETH_EVENT_INTR_LSC, RTE_ETH_EVENT_QUEUE_STATE };

int shim_vhost_watch(uint16_t port, int fd)
{
	for (size_t i = 0; i < sizeof(watched) / sizeof(*watched); i++) {
		int ret = rte_eth_dev_callback_register(port, watched[i], changed, (void *)(intptr_t)fd);

		if (ret < 0)
			return ret;
	}
	return 0;
}

void shim_vhost_unwatch(uint16_t port, int fd)
{
	for (size_t i = 0; i < sizeof(watched) / sizeof(*watched); i++)
		/* EAGAIN while the callback runs. */
		while (rte_eth_dev_callback_unregister(port, watched[i], changed, (void *)(intptr_t)fd) == -EAGAIN)
			rte_pause();
}
