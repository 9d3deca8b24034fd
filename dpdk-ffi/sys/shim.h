/* What DPDK offers only as inline functions, macros, bit fields or thread-local variables, as plain symbols.
 * Everything else is bound to directly; build.rs holds the list. */
#ifndef DPDK_SYS_SHIM_H
#define DPDK_SYS_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* struct rte_mbuf is made of nested anonymous unions which releases rearrange in name, not in meaning:
 * the offsets are all that Rust needs, and they keep field access free of calls. */
enum shim_mbuf_offset {
	SHIM_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	SHIM_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	SHIM_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	SHIM_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	SHIM_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	SHIM_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	SHIM_MBUF_NEXT = offsetof(struct rte_mbuf, next),
};

enum shim_limit {
	SHIM_MAX_LCORE = RTE_MAX_LCORE,
	SHIM_PKTMBUF_HEADROOM = RTE_PKTMBUF_HEADROOM,
	SHIM_MEMPOOL_CACHE_MAX_SIZE = RTE_MEMPOOL_CACHE_MAX_SIZE,
	SHIM_MBUF_MAX_NB_SEGS = RTE_MBUF_MAX_NB_SEGS,
};

static const uint64_t SHIM_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t SHIM_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;

/* Data path. */
uint16_t shim_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
uint16_t shim_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
int shim_pktmbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count);
void shim_pktmbuf_free(struct rte_mbuf *mbuf);
int shim_pktmbuf_linearize(struct rte_mbuf *mbuf);
int shim_pktmbuf_chain(struct rte_mbuf *head, struct rte_mbuf *tail);

/* The same for ports of the memif driver: see guard.c. While a handler of the driver runs, a burst is empty. */
uint16_t shim_guarded_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
uint16_t shim_guarded_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
/* Around whatever attaches, starts, stops, closes or detaches a memif port. */
void shim_guard_lock(void);
void shim_guard_unlock(void);

/* Returns the objects that the calling thread's cache of `pool` holds to the pool. */
void shim_mempool_flush_own_cache(struct rte_mempool *pool);

/* As rte_pktmbuf_pool_create, but with the mbufs side by side in one piece of memory, also across pages: what a
 * driver needs that computes the end of a pool from the number of its mbufs. NULL, with rte_errno, otherwise. */
struct rte_mempool *shim_pktmbuf_pool_create_packed(const char *name, unsigned int mbufs, unsigned int cache,
						    uint16_t room, int socket);

/* Thread-local state. */
int shim_errno(void);
unsigned int shim_lcore_id(void);
unsigned int shim_lcore_id_any(void);

/* struct rte_eth_link is bit fields, and a union since 24.11. */
int shim_link_get(uint16_t port, uint32_t *speed_mbps, int *up);

/* Whether a driver that is in this process claims the virtual device `name`. */
int shim_vdev_has_driver(const char *name);

/* Sends DPDK's log, whole messages at a time, to `write`. */
typedef ssize_t (*shim_log_write)(void *cookie, const char *text, size_t len);
int shim_log_to(shim_log_write write);

#endif
