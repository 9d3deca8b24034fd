/* Makes the file descriptors of EAL and of the drivers close-on-exec.
 *
 * DPDK creates its descriptors without this flag, so a program that the process starts would inherit them: a packet
 * socket would continue to receive, a memif peer would not see the end of the connection, and the memory of DPDK would
 * stay allocated. A flag set afterwards by fcntl would be too late for a thread that forks in between, but for the
 * sockets of libxdp there is no other way.
 *
 * build.rs redirects the calls to the functions here. Where DPDK is linked as shared libraries the calls cannot be
 * redirected, and none of this has an effect. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

int shim_cloexec_open(const char *path, int flags, ...);
int shim_cloexec_open64(const char *path, int flags, ...);
int shim_cloexec_socket(int domain, int type, int protocol);
int shim_cloexec_accept(int fd, struct sockaddr *address, socklen_t *len);
ssize_t shim_cloexec_recvmsg(int fd, struct msghdr *message, int flags);
int shim_cloexec_pipe(int fds[2]);
int shim_cloexec_dup(int fd);
int shim_cloexec_eventfd(unsigned int initial, int flags);
int shim_cloexec_epoll_create(int size);
int shim_cloexec_timerfd_create(int clock, int flags);
int shim_cloexec_memfd_create(const char *name, unsigned int flags);

/* libxdp. Weak, because programs that link DPDK as shared libraries may not link libxdp. */
struct xsk_umem;
struct xsk_umem_config;
struct xsk_socket;
struct xsk_socket_config;
struct xsk_ring_prod;
struct xsk_ring_cons;
int xsk_umem__create(struct xsk_umem **umem, void *area, uint64_t size, struct xsk_ring_prod *fill,
		     struct xsk_ring_cons *comp, const struct xsk_umem_config *config) __attribute__((weak));
int xsk_umem__fd(const struct xsk_umem *umem) __attribute__((weak));
int xsk_socket__create(struct xsk_socket **xsk, const char *interface, uint32_t queue, struct xsk_umem *umem,
		       struct xsk_ring_cons *rx, struct xsk_ring_prod *tx,
		       const struct xsk_socket_config *config) __attribute__((weak));
int xsk_socket__fd(const struct xsk_socket *xsk) __attribute__((weak));

int shim_cloexec_umem_create(struct xsk_umem **umem, void *area, uint64_t size, struct xsk_ring_prod *fill,
			     struct xsk_ring_cons *comp, const struct xsk_umem_config *config);
int shim_cloexec_xsk_create(struct xsk_socket **xsk, const char *interface, uint32_t queue, struct xsk_umem *umem,
			    struct xsk_ring_cons *rx, struct xsk_ring_prod *tx,
			    const struct xsk_socket_config *config);

/* Without O_CREAT the caller passes no mode, and the value read here is not used. */
int shim_cloexec_open(const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = va_arg(arguments, mode_t);
	va_end(arguments);
	return open(path, flags | O_CLOEXEC, mode);
}

int shim_cloexec_open64(const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = va_arg(arguments, mode_t);
	va_end(arguments);
	return open64(path, flags | O_CLOEXEC, mode);
}

int shim_cloexec_socket(int domain, int type, int protocol)
{
	return socket(domain, type | SOCK_CLOEXEC, protocol);
}

int shim_cloexec_accept(int fd, struct sockaddr *address, socklen_t *len)
{
	return accept4(fd, address, len, SOCK_CLOEXEC);
}

ssize_t shim_cloexec_recvmsg(int fd, struct msghdr *message, int flags)
{
	return recvmsg(fd, message, flags | MSG_CMSG_CLOEXEC);
}

int shim_cloexec_pipe(int fds[2])
{
	return pipe2(fds, O_CLOEXEC);
}

int shim_cloexec_dup(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

int shim_cloexec_eventfd(unsigned int initial, int flags)
{
	return eventfd(initial, flags | EFD_CLOEXEC);
}

int shim_cloexec_epoll_create(int size)
{
	(void)size;
	return epoll_create1(EPOLL_CLOEXEC);
}

int shim_cloexec_timerfd_create(int clock, int flags)
{
	return timerfd_create(clock, flags | TFD_CLOEXEC);
}

int shim_cloexec_memfd_create(const char *name, unsigned int flags)
{
	return memfd_create(name, flags | MFD_CLOEXEC);
}

/* libxdp, a shared library, creates the sockets, so the flag can only be set afterwards. The first socket of a umem is
 * the umem's. */
int shim_cloexec_umem_create(struct xsk_umem **umem, void *area, uint64_t size, struct xsk_ring_prod *fill,
			     struct xsk_ring_cons *comp, const struct xsk_umem_config *config)
{
	int error = xsk_umem__create(umem, area, size, fill, comp, config);

	if (error == 0)
		fcntl(xsk_umem__fd(*umem), F_SETFD, FD_CLOEXEC);
	return error;
}

int shim_cloexec_xsk_create(struct xsk_socket **xsk, const char *interface, uint32_t queue, struct xsk_umem *umem,
			    struct xsk_ring_cons *rx, struct xsk_ring_prod *tx,
			    const struct xsk_socket_config *config)
{
	int error = xsk_socket__create(xsk, interface, queue, umem, rx, tx, config);

	if (error == 0)
		fcntl(xsk_socket__fd(*xsk), F_SETFD, FD_CLOEXEC);
	return error;
}
