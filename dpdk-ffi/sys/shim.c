#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sys/mman.h>

#include "shim.h"

uint16_t shim_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, mbufs, count);
}

uint16_t shim_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

int shim_pktmbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, count);
}

void shim_pktmbuf_free(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

int shim_pktmbuf_linearize(struct rte_mbuf *mbuf)
{
	return rte_pktmbuf_linearize(mbuf);
}

int shim_pktmbuf_chain(struct rte_mbuf *head, struct rte_mbuf *tail)
{
	return rte_pktmbuf_chain(head, tail);
}

void shim_mempool_flush_own_cache(struct rte_mempool *pool)
{
	rte_mempool_cache_flush(NULL, pool);
}

struct extent {
	uintptr_t first;
	uintptr_t last;
};

static void widen(struct rte_mempool *pool, void *extent_, void *object, unsigned int index)
{
	struct extent *extent = extent_;
	uintptr_t at = (uintptr_t)object;

	(void)pool;
	(void)index;
	extent->first = RTE_MIN(extent->first, at);
	extent->last = RTE_MAX(extent->last, at);
}

static int fill_packed(struct rte_mempool *pool, uint16_t room)
{
	struct rte_pktmbuf_pool_private private_data = {.mbuf_data_room_size = room};
	struct extent extent = {.first = UINTPTR_MAX};
	size_t stride = pool->header_size + pool->elt_size + pool->trailer_size;
	int ret = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);

	if (ret < 0)
		return -ret;
	rte_pktmbuf_pool_init(pool, &private_data);
	ret = rte_mempool_populate_default(pool);
	if (ret < 0)
		return -ret;
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	rte_mempool_obj_iter(pool, widen, &extent);
	/* Not contiguous if the memory is in several pieces. */
	return extent.last - extent.first == (pool->size - 1) * stride ? 0 : ENOMEM;
}

struct rte_mempool *shim_pktmbuf_pool_create_packed(const char *name, unsigned int mbufs, unsigned int cache,
						    uint16_t room, int socket)
{
	/* Without the flag no mbuf may cross from one page to the next. */
	struct rte_mempool *pool =
		rte_mempool_create_empty(name, mbufs, sizeof(struct rte_mbuf) + room, cache,
					 sizeof(struct rte_pktmbuf_pool_private), socket,
					 RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	int error = pool == NULL ? rte_errno : fill_packed(pool, room);

	if (error == 0)
		return pool;
	rte_mempool_free(pool);
	rte_errno = error;
	return NULL;
}

int shim_errno(void)
{
	return rte_errno;
}

unsigned int shim_lcore_id(void)
{
	return rte_lcore_id();
}

unsigned int shim_lcore_id_any(void)
{
	return LCORE_ID_ANY;
}

int shim_link_get(uint16_t port, uint32_t *speed_mbps, int *up)
{
	struct rte_eth_link link = {0};
	int ret = rte_eth_link_get_nowait(port, &link);

	*speed_mbps = link.link_speed;
	*up = link.link_status == RTE_ETH_LINK_UP;
	return ret;
}

int shim_vdev_has_driver(const char *name)
{
	/* Without a bus prefix, parsing queries every bus for a driver of the name. */
	struct rte_devargs devargs = {0};
	int ret = rte_devargs_parse(&devargs, name);

	if (ret == 0)
		rte_devargs_reset(&devargs);
	return ret == 0;
}

int shim_log_to(shim_log_write write)
{
	cookie_io_functions_t functions = { .write = write };
	FILE *stream = fopencookie(NULL, "w", functions);

	return stream == NULL ? -1 : rte_openlog_stream(stream);
}

static int keep_from_forks(const struct rte_memseg_list *list, const struct rte_memseg *segment, size_t len, void *argument)
{
	(void)list;
	(void)argument;
	return madvise(segment->addr, len, MADV_DONTFORK) == 0 ? 0 : -errno;
}

/* A failure leaves the memory in forked processes, which do not use it. */
static void on_memory_event(enum rte_mem_event event, const void *address, size_t len, void *argument)
{
	(void)argument;
	if (event == RTE_MEM_EVENT_ALLOC)
		madvise((void *)(uintptr_t)address, len, MADV_DONTFORK);
}

int shim_keep_memory_from_forks(void)
{
	/* Refused without hugepages, where all memory is allocated at the start. */
	rte_mem_event_callback_register("dpdk-ffi-forks", on_memory_event, NULL);
	return rte_memseg_contig_walk(keep_from_forks, NULL);
}
