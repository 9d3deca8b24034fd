/* The memif driver's system calls, handed to whoever installed functions for them (dpdk-ffi/src/memif).
 *
 * The driver believes what its peer says: which users connect, where regions, rings and buffers are. build.rs
 * redirects its calls to the functions here, and dpdk-ffi checks what goes through them; its bursts, which read
 * the shared memory without a check, are not used at all. */
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
/* A connection was refused, which the driver logs each time: a stranger could fill the log. */
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

/* A socket file takes its mode from the socket: its owner's alone, from the first moment on. The umask, which
 * would do the same, is the whole process's. An abstract address has no mode. */
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
