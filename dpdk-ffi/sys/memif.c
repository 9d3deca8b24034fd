/* The memif driver's system calls, passed to installed functions (dpdk-ffi/src/memif).
 *
 * The driver trusts its peer: its user, and the positions of regions, rings and buffers. build.rs redirects the
 * driver's calls to the functions here, and dpdk-ffi checks them. The driver's bursts, which read the shared memory
 * without a check, are not used. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim.h"

static struct shim_memif_hooks hooks;
/* Set after a refused connection, whose log line is dropped: otherwise a stranger could fill the log. */
static _Thread_local bool refused;

int shim_socket_bind(int fd, const struct sockaddr *address, socklen_t len);
int shim_memif_listen(int fd, int backlog);
int shim_memif_accept(int fd, struct sockaddr *address, socklen_t *len);
int shim_memif_connect(int fd, const struct sockaddr *address, socklen_t len);
ssize_t shim_memif_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t shim_memif_sendmsg(int fd, const struct msghdr *message, int flags);
void *shim_memif_mmap(void *address, size_t len, int access, int flags, int fd, off_t offset);
void *shim_memif_mmap64(void *address, size_t len, int access, int flags, int fd, off64_t offset);
int shim_memif_munmap(void *address, size_t len);
int shim_memif_log(uint32_t level, uint32_t type, const char *format, ...);

void shim_memif_install(const struct shim_memif_hooks *installed)
{
	hooks = *installed;
}

void shim_memif_warn(const char *line)
{
	rte_log(RTE_LOG_WARNING, RTE_LOGTYPE_USER1, "%s\n", line);
}

/* A socket file takes its mode from the socket, so it is its owner's alone from the first moment on. The umask would
 * do the same, but is the whole process's. An abstract address has no mode. */
int shim_socket_bind(int fd, const struct sockaddr *address, socklen_t len)
{
	return fchmod(fd, S_IRUSR | S_IWUSR) != 0 ? -1 : bind(fd, address, len);
}

int shim_memif_listen(int fd, int backlog)
{
	return hooks.listen(fd, backlog);
}

int shim_memif_accept(int fd, struct sockaddr *address, socklen_t *len)
{
	int accepted = hooks.accept(fd);

	(void)address;
	(void)len;
	refused = accepted < 0 && errno == EACCES;
	return accepted;
}

int shim_memif_connect(int fd, const struct sockaddr *address, socklen_t len)
{
	return hooks.connect(fd, address, len);
}

ssize_t shim_memif_recvmsg(int fd, struct msghdr *message, int flags)
{
	(void)flags;
	return hooks.recvmsg(fd, message);
}

ssize_t shim_memif_sendmsg(int fd, const struct msghdr *message, int flags)
{
	(void)flags;
	return hooks.sendmsg(fd, message);
}

void *shim_memif_mmap(void *address, size_t len, int access, int flags, int fd, off_t offset)
{
	return hooks.mmap(address, len, access, flags, fd, offset);
}

void *shim_memif_mmap64(void *address, size_t len, int access, int flags, int fd, off64_t offset)
{
	return hooks.mmap(address, len, access, flags, fd, offset);
}

int shim_memif_munmap(void *address, size_t len)
{
	return hooks.munmap(address, len);
}

int shim_memif_close(int fd)
{
	return hooks.close(fd);
}

int shim_memif_log(uint32_t level, uint32_t type, const char *format, ...)
{
	va_list arguments;
	int ret;

	if (refused) {
		refused = false;
		return 0;
	}
	va_start(arguments, format);
	ret = rte_vlog(level, type, format, arguments);
	va_end(arguments);
	return ret;
}
