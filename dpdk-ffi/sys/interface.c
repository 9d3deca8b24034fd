/* Keeps the drivers of kernel interfaces (af_packet, af_xdp) from changing the interface, and af_packet's sockets
 * from receiving frames that their filter refuses.
 *
 * Whenever a port starts, ethdev sets its MAC and its promiscuous mode. On a kernel interface the MAC is the one it
 * has, but setting it flushes the interface's neighbour table, permanent entries included; and promiscuous mode is
 * switched off for all who requested it from the kernel. Besides, af_packet's sockets receive every frame of the
 * interface, including those sent, and form a fanout group. A group reassembles IP fragments. Its number is made from
 * the process ID, which two processes in different PID namespaces may have in common: they would form one group, and
 * each would receive a part of the frames. And a group of one socket ignores the socket's option to receive no outgoing
 * frames.
 *
 * build.rs redirects the drivers' system calls to the functions here. Where DPDK is linked as shared libraries the
 * drivers cannot be redirected, and none of this has an effect. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "shim.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#ifndef PACKET_FANOUT_FLAG_UNIQUEID
#define PACKET_FANOUT_FLAG_UNIQUEID 0x2000
#endif

/* The filter of packet sockets that get a ring in this thread; none if its length is 0. */
static _Thread_local struct sock_fprog ring_filter;

/* The first socket that got the filter in this thread, until a second one joins it to a group; -1 if none. */
static _Thread_local int lone_socket = -1;
/* The number of their fanout group. */
static _Thread_local int fanout_id;

void shim_packet_filter(const void *instructions, uint16_t count)
{
	ring_filter.filter = (struct sock_filter *)(uintptr_t)instructions;
	ring_filter.len = count;
	lone_socket = -1;
	fanout_id = -1;
}

int shim_interface_ioctl(int fd, unsigned long request, ...);
int shim_interface_setsockopt(int fd, int level, int option, const void *value, socklen_t len);

int shim_interface_ioctl(int fd, unsigned long request, ...)
{
	const struct ifreq *ifr;
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	ifr = arg;
	if (request == SIOCSIFHWADDR)
		return 0;
	/* A port may switch promiscuous mode on, and no port switches it off. */
	if (request == SIOCSIFFLAGS && !(ifr->ifr_flags & IFF_PROMISC))
		return 0;
	return ioctl(fd, request, arg);
}

/* Attaches the filter before the socket gets its ring: a packet socket receives the frames of all interfaces from its
 * creation on, and the kernel discards those that it received without a ring. */
static int attach_filter(int fd)
{
	int on = 1;

	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &ring_filter, sizeof(ring_filter)) < 0)
		return -1;
	/* Until the port needs frames of other processes. Needs Linux 4.20; before, the filter alone drops outgoing
	 * frames. */
	setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on));
	return 0;
}

static int join(int fd, int fanout)
{
	return setsockopt(fd, SOL_PACKET, PACKET_FANOUT, &fanout, sizeof(fanout));
}

/* Makes the first two sockets a group whose number the kernel chooses (since Linux 4.12), and adds each further one. A
 * port with one socket has no group. */
static int join_fanout(int fd, int fanout)
{
	int flags = fanout & ~0xffff & ~(PACKET_FANOUT_FLAG_DEFRAG << 16);
	socklen_t len = sizeof(fanout_id);

	if (fanout_id < 0) {
		if (lone_socket < 0) {
			lone_socket = fd;
			return 0;
		}
		if (join(lone_socket, flags | PACKET_FANOUT_FLAG_UNIQUEID << 16) < 0 ||
		    getsockopt(lone_socket, SOL_PACKET, PACKET_FANOUT, &fanout_id, &len) < 0)
			return -1;
		fanout_id &= 0xffff;
	}
	return join(fd, flags | fanout_id);
}

int shim_interface_setsockopt(int fd, int level, int option, const void *value, socklen_t len)
{
	if (ring_filter.len == 0 || level != SOL_PACKET)
		return setsockopt(fd, level, option, value, len);
	if (option == PACKET_FANOUT && len == sizeof(int))
		return join_fanout(fd, *(const int *)value);
	if (option == PACKET_RX_RING && attach_filter(fd) < 0)
		return -1;
	return setsockopt(fd, level, option, value, len);
}
