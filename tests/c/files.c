/* Calls each function of the C library that the library rewrites paths for, and compares the result with that of a
 * system call, which the library does not see.
 *
 *     files TREE DIRECTORY   the library has ROCE_TREE=TREE
 *     files "" DIRECTORY     the library has no ROCE_TREE
 *
 * TREE has sys/class/infiniband/roce0/node_guid, the link sys/class/infiniband/roce0/link to node_guid, and
 * dev/infiniband/uverbs_roce0; DIRECTORY has no symbolic links in its path, the file file, and the link link to file. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s (errno %d) %s\n", __FILE__, __LINE__, #condition, errno, checked);             \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* Functions that programs call which were compiled with _FORTIFY_SOURCE or for a glibc before 2.33. */
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
int __xstat(int, const char *, struct stat *);
int __lxstat(int, const char *, struct stat *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat64(int, const char *, struct stat64 *);
int __fxstatat64(int, int, const char *, struct stat64 *, int);
ssize_t __readlink_chk(const char *, char *, size_t, size_t);
ssize_t __readlinkat_chk(int, const char *, char *, size_t, size_t);
char *__realpath_chk(const char *, char *, size_t);

/* Value of `version` of __xstat for struct stat. */
#ifdef __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif
#define DEVICES "/sys/class/infiniband"

static const char *tree, *checked = "";

/* Returns the name by which the kernel is to see `path`. */
static const char *actual(const char *path)
{
    static char name[2 * PATH_MAX];
    int is_of_tree = strstr(path, "infiniband") && path[0] == '/';
    snprintf(name, sizeof(name), "%s%s", is_of_tree ? tree : "", path);
    return name;
}

/* A file, or the errno with which it cannot be used. */
struct file {
    int error;
    unsigned long device, inode;
    unsigned mode;
};

static struct file direct(int directory, const char *path, int flags)
{
    struct statx status;
    if (syscall(SYS_statx, directory, path, flags, STATX_BASIC_STATS, &status))
        return (struct file){ .error = errno };
    unsigned long device = ((unsigned long)status.stx_dev_major << 32) | status.stx_dev_minor;
    return (struct file){ .device = device, .inode = status.stx_ino, .mode = status.stx_mode };
}

static int is_same(struct file one, struct file other)
{
    return one.error == other.error && one.device == other.device && one.inode == other.inode && one.mode == other.mode;
}

static struct file of_fd(int fd)
{
    if (fd < 0)
        return (struct file){ .error = errno };
    struct file file = direct(fd, "", AT_EMPTY_PATH);
    close(fd);
    return file;
}

static struct file of_stream(FILE *stream)
{
    if (!stream)
        return (struct file){ .error = errno };
    struct file file = direct(fileno(stream), "", AT_EMPTY_PATH);
    fclose(stream);
    return file;
}

static struct file of_directory(DIR *directory)
{
    if (!directory)
        return (struct file){ .error = errno };
    struct file file = direct(dirfd(directory), "", AT_EMPTY_PATH);
    closedir(directory);
    return file;
}

static struct file of_stat(int result, const struct stat *status)
{
    if (result)
        return (struct file){ .error = errno };
    unsigned long device = ((unsigned long)major(status->st_dev) << 32) | minor(status->st_dev);
    return (struct file){ .device = device, .inode = status->st_ino, .mode = status->st_mode };
}

static void check_open(const char *path)
{
    struct file wanted = direct(AT_FDCWD, actual(path), 0);
    CHECK(is_same(of_fd(open(path, O_RDONLY)), wanted));
    CHECK(is_same(of_fd(open64(path, O_RDONLY)), wanted));
    CHECK(is_same(of_fd(openat(AT_FDCWD, path, O_RDONLY)), wanted));
    CHECK(is_same(of_fd(openat64(AT_FDCWD, path, O_RDONLY)), wanted));
    CHECK(is_same(of_fd(__open_2(path, O_RDONLY)), wanted));
    CHECK(is_same(of_fd(__open64_2(path, O_RDONLY)), wanted));
    CHECK(is_same(of_fd(__openat_2(AT_FDCWD, path, O_RDONLY)), wanted));
    CHECK(is_same(of_fd(__openat64_2(AT_FDCWD, path, O_RDONLY)), wanted));
    CHECK(is_same(of_stream(fopen(path, "r")), wanted));
    CHECK(is_same(of_stream(fopen64(path, "r")), wanted));
    CHECK(is_same(of_stream(freopen(path, "r", fopen("/dev/zero", "r"))), wanted));
    CHECK(is_same(of_stream(freopen64(path, "r", fopen("/dev/zero", "r"))), wanted));
}

static void check_stat(const char *path)
{
    struct file wanted = direct(AT_FDCWD, actual(path), 0);
    struct file link = direct(AT_FDCWD, actual(path), AT_SYMLINK_NOFOLLOW);
    struct stat status;
    struct stat64 status64;
    struct statx statusx;
    CHECK(is_same(of_stat(stat(path, &status), &status), wanted));
    CHECK(is_same(of_stat(lstat(path, &status), &status), link));
    CHECK(is_same(of_stat(fstatat(AT_FDCWD, path, &status, 0), &status), wanted));
    CHECK(is_same(of_stat(fstatat(AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW), &status), link));
    CHECK(is_same(of_stat(__xstat(STAT_VERSION, path, &status), &status), wanted));
    CHECK(is_same(of_stat(__lxstat(STAT_VERSION, path, &status), &status), link));
    CHECK(is_same(of_stat(__fxstatat(STAT_VERSION, AT_FDCWD, path, &status, 0), &status), wanted));
    /* struct stat64 is struct stat on 64-bit targets. */
    const struct stat *same = (const struct stat *)&status64;
    CHECK(is_same(of_stat(stat64(path, &status64), same), wanted));
    CHECK(is_same(of_stat(lstat64(path, &status64), same), link));
    CHECK(is_same(of_stat(fstatat64(AT_FDCWD, path, &status64, 0), same), wanted));
    CHECK(is_same(of_stat(__xstat64(STAT_VERSION, path, &status64), same), wanted));
    CHECK(is_same(of_stat(__lxstat64(STAT_VERSION, path, &status64), same), link));
    CHECK(is_same(of_stat(__fxstatat64(STAT_VERSION, AT_FDCWD, path, &status64, 0), same), wanted));
    int result = statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &statusx);
    CHECK(result ? errno == wanted.error : statusx.stx_ino == wanted.inode && statusx.stx_mode == wanted.mode);
}

/* Returns whether a call has returned what a system call returns. */
static int is_equal(long result, int error, long direct_result, int direct_error)
{
    return result == direct_result && (result >= 0 || error == direct_error);
}

#define SAME(call, direct_call)                                                                                       \
    do {                                                                                                              \
        long result_ = (call);                                                                                        \
        int error_ = errno;                                                                                           \
        long direct_ = (direct_call);                                                                                 \
        CHECK(is_equal(result_, error_, direct_, errno));                                                             \
    } while (0)

static void check_access(const char *path)
{
    for (int mode = F_OK; mode <= X_OK; mode++) {
        SAME(access(path, mode), syscall(SYS_faccessat, AT_FDCWD, actual(path), mode));
        SAME(eaccess(path, mode), syscall(SYS_faccessat, AT_FDCWD, actual(path), mode));
        SAME(euidaccess(path, mode), syscall(SYS_faccessat, AT_FDCWD, actual(path), mode));
        SAME(faccessat(AT_FDCWD, path, mode, 0), syscall(SYS_faccessat, AT_FDCWD, actual(path), mode));
    }
    char value[64];
    SAME(getxattr(path, "user.a", value, sizeof(value)), syscall(SYS_getxattr, actual(path), "user.a", value, 64));
    SAME(lgetxattr(path, "user.a", value, sizeof(value)), syscall(SYS_lgetxattr, actual(path), "user.a", value, 64));
    SAME(listxattr(path, value, sizeof(value)), syscall(SYS_listxattr, actual(path), value, 64));
    SAME(llistxattr(path, value, sizeof(value)), syscall(SYS_llistxattr, actual(path), value, 64));
}

static void check_link(const char *path)
{
    char link[PATH_MAX] = "", wanted[PATH_MAX] = "";
    for (size_t size = 0; size < sizeof(link); size = size ? 4 * size : 1) {
#define LINK(call)                                                                                                    \
    do {                                                                                                              \
        SAME(call, syscall(SYS_readlinkat, AT_FDCWD, actual(path), wanted, size));                                    \
        CHECK(!memcmp(link, wanted, sizeof(link)));                                                                   \
        memset(link, 0, sizeof(link));                                                                                \
        memset(wanted, 0, sizeof(wanted));                                                                            \
    } while (0)
        LINK(readlink(path, link, size));
        LINK(readlinkat(AT_FDCWD, path, link, size));
        LINK(__readlink_chk(path, link, size, sizeof(link)));
        LINK(__readlinkat_chk(AT_FDCWD, path, link, size, sizeof(link)));
    }
}

/* `resolved` is null if the file does not exist. */
static void check_realpath(const char *path, const char *resolved)
{
    char place[PATH_MAX];
    char *paths[] = { realpath(path, place), __realpath_chk(path, place, sizeof(place)), realpath(path, NULL),
                      canonicalize_file_name(path) };
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        CHECK(resolved ? paths[i] && !strcmp(paths[i], resolved) : !paths[i]);
        CHECK(i > 1 || !paths[i] || paths[i] == place);
    }
    free(paths[2]);
    free(paths[3]);
}

static int by_name(const struct dirent **one, const struct dirent **other)
{
    return strcmp((*one)->d_name, (*other)->d_name);
}

/* Compares the entries with those of the same directory by a name that the library leaves as it is. */
static void check_entries(const char *path, int result, struct dirent ***entries)
{
    struct dirent **list = *entries;
    struct dirent **wanted;
    int count = scandir(actual(path), &wanted, NULL, by_name);
    CHECK(result == count);
    for (int i = 0; i < count; i++) {
        CHECK(!strcmp(list[i]->d_name, wanted[i]->d_name));
        free(list[i]);
        free(wanted[i]);
    }
    if (count >= 0) {
        free(list);
        free(wanted);
    }
}

static void check_directory(const char *path)
{
    struct file wanted = of_fd(syscall(SYS_openat, AT_FDCWD, actual(path), O_RDONLY | O_DIRECTORY));
    CHECK(is_same(of_directory(opendir(path)), wanted));
    struct dirent **list = NULL;
    struct dirent64 **list64 = NULL;
    int (*by_name64)(const struct dirent64 **, const struct dirent64 **) = (void *)by_name;
    check_entries(path, scandir(path, &list, NULL, by_name), &list);
    check_entries(path, scandirat(AT_FDCWD, path, &list, NULL, by_name), &list);
    check_entries(path, scandir64(path, &list64, NULL, by_name64), (struct dirent ***)&list64);
    check_entries(path, scandirat64(AT_FDCWD, path, &list64, NULL, by_name64), (struct dirent ***)&list64);
    SAME(chdir(path), syscall(SYS_chdir, actual(path)));
    if (!wanted.error)
        CHECK(is_same(direct(AT_FDCWD, ".", 0), wanted));
    CHECK(!chdir("/"));
}

/* New files have the mode that the program passes. */
static void check_create(const char *path)
{
    umask(0);
    int created[] = { open(path, O_CREAT | O_EXCL | O_RDWR, 0604), open64(path, O_CREAT | O_RDWR, 0604),
                      openat64(AT_FDCWD, path, O_CREAT | O_RDWR, 0604), creat(path, 0604), creat64(path, 0604) };
    struct file wanted = direct(AT_FDCWD, actual(path), 0);
    for (size_t i = 0; i < sizeof(created) / sizeof(created[0]); i++)
        CHECK(created[i] < 0 ? wanted.error != 0 : is_same(of_fd(created[i]), wanted));
    CHECK(wanted.error || (wanted.mode & 0777) == 0604);
    CHECK(unlink(actual(path)) == (wanted.error ? -1 : 0));
    struct file again = of_fd(openat(AT_FDCWD, path, O_CREAT | O_EXCL | O_RDWR, 0640));
    CHECK(wanted.error ? again.error != 0 : is_same(again, direct(AT_FDCWD, actual(path), 0)));
    CHECK(wanted.error || ((again.mode & 0777) == 0640 && !unlink(actual(path))));
}

static void check_file(const char *path)
{
    checked = path;
    check_open(path);
    check_stat(path);
    check_access(path);
    check_link(path);
}

static void check_errors(void)
{
    checked = "errors";
    /* A path that has no room in the buffer of the library, and null. */
    char path[PATH_MAX] = DEVICES "/";
    memset(path + strlen(path), '/', sizeof(path) - 1 - strlen(path));
    path[sizeof(path) - 1] = 0;
    struct stat status;
    CHECK(open(path, O_RDONLY) == (*tree ? -1 : open(DEVICES, O_RDONLY)) && (!*tree || errno == ENAMETOOLONG));
    CHECK(!*tree || (stat(path, &status) == -1 && errno == ENAMETOOLONG));
    CHECK(!*tree || (!fopen(path, "r") && errno == ENAMETOOLONG));
    CHECK(!*tree || (!realpath(path, NULL) && errno == ENAMETOOLONG));
    const char *volatile null = NULL;
    CHECK(open(null, O_RDONLY) == -1 && errno == EFAULT);
    CHECK(stat(null, &status) == -1 && errno == EFAULT);
    errno = 77;
    int fd = open("/dev/null", O_RDONLY);
    CHECK(fd >= 0 && errno == 77);
    close(fd);
}

/* Relative paths are those of the kernel, also below a directory of the tree. */
static void check_relative(void)
{
    checked = "relative";
    int root = open("/", O_RDONLY | O_DIRECTORY);
    struct file wanted = direct(AT_FDCWD, DEVICES "/roce0/node_guid", 0);
    CHECK(is_same(of_fd(openat(root, "sys/class/infiniband/roce0/node_guid", O_RDONLY)), wanted));
    close(root);
    int devices = open(DEVICES, O_RDONLY | O_DIRECTORY);
    if (devices >= 0) {
        wanted = direct(AT_FDCWD, actual(DEVICES "/roce0/node_guid"), 0);
        CHECK(is_same(of_fd(openat(devices, "roce0/node_guid", O_RDONLY)), wanted));
    }
    close(devices);
}

/* Links and resolved paths have the names that the program knows, also if the link has no room for the end. */
static void check_names(void)
{
    checked = "names";
    check_realpath(DEVICES "/roce0/link", *tree ? DEVICES "/roce0/node_guid" : NULL);
    check_realpath(DEVICES "/roce0/../..", *tree ? "/sys/class" : NULL);
    check_realpath("//dev///infiniband/./uverbs_roce0/", NULL);
    check_realpath("//dev///infiniband/./uverbs_roce0", *tree ? "/dev/infiniband/uverbs_roce0" : NULL);
    if (!*tree)
        return;
    check_realpath(tree, "/");
    const char *name = DEVICES "/roce0/node_guid";
    int fd = open(name, O_RDONLY);
    char link[64], place[PATH_MAX];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    for (size_t size = 1; size < sizeof(place); size++) {
        memset(place, 0, sizeof(place));
        size_t len = size < strlen(name) ? size : strlen(name);
        CHECK(readlink(link, place, size) == (ssize_t)len && !memcmp(place, name, len) && !place[len]);
    }
    close(fd);
}

static void *open_and_wait(void *path)
{
    /* A FIFO that no process writes: the open waits, and is a cancellation point. */
    open(path, O_RDONLY);
    return NULL;
}

static void check_cancellation(const char *directory)
{
    char path[PATH_MAX];
    checked = path;
    const char *names[] = { directory, DEVICES };
    for (int i = 0; i < (*tree ? 2 : 1); i++) {
        snprintf(path, sizeof(path), "%s/fifo", names[i]);
        CHECK(!mkfifo(actual(path), 0600));
        pthread_t thread;
        void *result;
        CHECK(!pthread_create(&thread, NULL, open_and_wait, path) && !pthread_cancel(thread));
        CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED);
        CHECK(!unlink(actual(path)));
    }
}

/* Runs before the constructors of all libraries. */
static void before_constructors(void)
{
    CHECK(open("/proc/self/no such file", O_RDONLY) == -1 && errno == ENOENT);
    close(open(DEVICES "/roce0/node_guid", O_RDONLY));
}

__attribute__((section(".preinit_array"), used)) static void (*first)(void) = before_constructors;

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    tree = argv[1];
    const char *directory = argv[2];
    char path[PATH_MAX], resolved[PATH_MAX];
    const char *of_tree[] = { DEVICES "/roce0/node_guid", DEVICES "/roce0/link", "//sys/class/.//infiniband//roce0/link",
                              DEVICES, DEVICES "/", DEVICES "/none", DEVICES "/roce0/none/", DEVICES "/roce0/..",
                              "/dev/infiniband/uverbs_roce0", "/dev/infiniband/", DEVICES "_verbs/abi_version" };
    for (size_t i = 0; i < sizeof(of_tree) / sizeof(of_tree[0]); i++) {
        check_file(of_tree[i]);
        check_directory(of_tree[i]);
    }
    const char *ordinary[] = { "file", "link", "none", "", "." };
    for (size_t i = 0; i < sizeof(ordinary) / sizeof(ordinary[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, ordinary[i]);
        check_file(path);
        check_directory(path);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, i ? "link" : "file");
        snprintf(resolved, sizeof(resolved), "%s/file", directory);
        check_realpath(path, resolved);
    }
    snprintf(path, sizeof(path), "%s/new", directory);
    check_create(path);
    check_create(DEVICES "/new");
    check_errors();
    check_relative();
    check_names();
    check_cancellation(directory);
    puts("all checks passed");
    return 0;
}
