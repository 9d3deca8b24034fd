/* Keeps the drivers of kernel interfaces (af_packet, af_xdp) from changing the interface, and af_packet's sockets
 * from receiving frames that their filter refuses.
 *
 * Whenever a port starts, ethdev sets its MAC and its promiscuous mode. On a kernel interface the MAC is the one it
 * has, but setting it flushes the interface's neighbour table, permanent entries included; and promiscuous mode is
 * switched off for all who requested it from the kernel. Besides, af_packet's sockets receive every frame of the
 * interface, including those sent, and form a fanout group, which reassembles IP fragments and ignores a socket's own
 * option to receive no outgoing frames.
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
#ifndef PACKET_FANOUT_FLAG_IGNORE_OUTGOING
#define PACKET_FANOUT_FLAG_IGNORE_OUTGOING 0x4000
#endif

/* The filter of packet sockets that this thread binds; none if its length is 0. */
static _Thread_local struct sock_fprog bound_filter;

void shim_packet_filter(const void *instructions, uint16_t count)
{
	bound_filter.filter = (struct sock_filter *)(uintptr_t)instructions;
	bound_filter.len = count;
}

int shim_interface_ioctl(int fd, unsigned long request, ...);
int shim_interface_bind(int fd, const struct sockaddr *address, socklen_t len);
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

/* Attaches the filter before the bind, because until then a socket receives nothing: no frame passes unfiltered. */
int shim_interface_bind(int fd, const struct sockaddr *address, socklen_t len)
{
	int on = 1;

	if (bound_filter.len != 0) {
		if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &bound_filter, sizeof(bound_filter)) < 0)
			return -1;
		/* Needs Linux 4.20; before, the filter alone drops outgoing frames. */
		setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on));
	}
	return bind(fd, address, len);
}

int shim_interface_setsockopt(int fd, int level, int option, const void *value, socklen_t len)
{
	int fanout;

	if (bound_filter.len == 0 || level != SOL_PACKET || option != PACKET_FANOUT || len != sizeof(fanout))
		return setsockopt(fd, level, option, value, len);
	fanout = *(const int *)value & ~(PACKET_FANOUT_FLAG_DEFRAG << 16);
	if (setsockopt(fd, level, option, &(int){fanout | PACKET_FANOUT_FLAG_IGNORE_OUTGOING << 16}, len) == 0)
		return 0;
	return setsockopt(fd, level, option, &fanout, len);
}
