/* Parts of DPDK that are inline functions, macros, bit fields or thread-local variables, as plain symbols.
 * Everything else is bound to directly; build.rs has the list. */
#ifndef DPDK_SYS_SHIM_H
#define DPDK_SYS_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* struct rte_mbuf consists of nested anonymous unions, which releases rename without a change of meaning. Rust needs
 * only the offsets, and with them accesses fields without calls. */
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
	SHIM_MAX_ETHPORTS = RTE_MAX_ETHPORTS,
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

/* Makes the flag of a queue of a memif port; NULL if no memory is left. Not called between lock and unlock. */
struct shim_burst_flag;
struct shim_burst_flag *shim_guard_flag_new(void);
void shim_guard_flag_free(struct shim_burst_flag *flag);
/* Enclose a burst of the queue, because the driver's own thread also accesses its memory: see guard.c. While a handler
 * of the driver runs, `begin` returns false and no burst may be made. */
bool shim_guard_burst_begin(struct shim_burst_flag *flag);
void shim_guard_burst_end(struct shim_burst_flag *flag);
/* Enclose an operation that attaches, starts, stops, closes or detaches a memif port. */
void shim_guard_lock(void);
void shim_guard_unlock(void);
/* As `lock`, but returns false if another thread has the lock. */
bool shim_guard_try_lock(void);

/* Called by the memif driver in place of the system calls, with the same meaning: see memif.c. Installed before the
 * first memif device is attached. */
struct shim_memif_hooks {
	int (*listen)(int fd, int backlog);
	/* Without an address, because the caller does not read it. */
	int (*accept)(int fd);
	/* struct sockaddr */
	int (*connect)(int fd, const void *address, unsigned int len);
	/* struct msghdr */
	ssize_t (*recvmsg)(int fd, void *message);
	ssize_t (*sendmsg)(int fd, const void *message);
	void *(*mmap)(void *address, size_t len, int access, int flags, int fd, int64_t offset);
	int (*munmap)(void *address, size_t len);
	int (*close)(int fd);
};
void shim_memif_install(const struct shim_memif_hooks *hooks);
int shim_memif_close(int fd);
/* Logs a line as a warning. */
void shim_memif_warn(const char *line);

/* Sets the classic BPF program of packet sockets that the af_packet driver opens in this thread from now on; none if
 * `count` is 0: see interface.c. The caller owns the program, which must live until the next call. */
void shim_packet_filter(const void *instructions, uint16_t count);

/* Enables or disables the kicks of the peer of a vhost queue, and stores a duplicate of the kick descriptor in `kick_fd`,
 * unless NULL: see vhost.c. Returns false if the queue is not connected. The queue is in no burst. */
bool shim_vhost_notify(uint16_t port, uint16_t queue, bool enable, int *kick_fd);
/* Adds 1 to the eventfd `fd` whenever a connection or a queue of the vhost port `port` begins or ends, until
 * `shim_vhost_unwatch`. 0 or a negative error number. */
int shim_vhost_watch(uint16_t port, int fd);
void shim_vhost_unwatch(uint16_t port, int fd);

/* Returns the objects in the calling thread's cache of `pool` to the pool. */
void shim_mempool_flush_own_cache(struct rte_mempool *pool);

/* As rte_pktmbuf_pool_create, but with the mbufs contiguous in one piece of memory, also across pages, because a
 * driver may compute the end of a pool from the number of its mbufs. NULL, with rte_errno, on failure. */
struct rte_mempool *shim_pktmbuf_pool_create_packed(const char *name, unsigned int mbufs, unsigned int cache,
						    uint16_t room, int socket);

/* Thread-local state. */
int shim_errno(void);
unsigned int shim_lcore_id(void);
unsigned int shim_lcore_id_any(void);

/* struct rte_eth_link is bit fields, and a union since 24.11. */
int shim_link_get(uint16_t port, uint32_t *speed_mbps, int *up);

/* Whether a driver in this process claims the virtual device `name`. */
int shim_vdev_has_driver(const char *name);

/* Keeps the memory that EAL has and will allocate out of processes forked from now on. 0 or a negative error number. */
int shim_keep_memory_from_forks(void);

/* Sends DPDK's log, whole messages at a time, to `write`. */
typedef ssize_t (*shim_log_write)(void *cookie, const char *text, size_t len);
int shim_log_to(shim_log_write write);

#endif
