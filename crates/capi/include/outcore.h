/* outcore: files and arrays over many disks. Made by cbindgen from crates/capi: do not edit.
 *
 * Results of type int are 0, or -errno; those of type int64_t are a number, or -errno. outcore_error_text then has the
 * reason. Sizes and offsets are bytes. Texts are UTF-8.
 *
 * After fork(2), the child may use none of its parent's objects: calls return -ENOTCONN. It makes its own.
 *
 *   ENOENT     no such name             EACCES     no permission, or a wrong key
 *   EEXIST     the name exists          EROFS      the file is open for reading
 *   ENOSPC     a disk is full           EBUSY      another process uses it
 *   ENOMEM     no memory                EINVAL     an argument is unusable
 *   EBADF      the pool was closed      ENOTCONN   the process was forked
 *   ENODATA    the file ends too early  EBADMSG    bytes on disk are damaged
 *   ETIMEDOUT  a request has not ended  ERANGE     the memory is too small
 *   EREMOTEIO  unsynced writes may be   EIO        a disk or a server failed
 *              lost: write them again   ENOTRECOVERABLE  a fault in the library
 *
 * A handle that is NULL gives -EINVAL without a text.
 */

#ifndef OUTCORE_H
#define OUTCORE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

// Version of the interface: it changes with the SONAME of the library.
#define OUTCORE_INTERFACE 0

// An array of a pool that is open.
typedef struct outcore_array outcore_array;

// A file of a pool that is open.
typedef struct outcore_file outcore_file;

// Hints for the layout of new files: names and values, as in MPI_Info.
//
// Known names are striping_unit (bytes on one server), striping_factor (number of servers) and start_iodevice (the
// first server); outcore's own names for them are stripe_unit_bytes, stripe_count and base. A pool keeps other hints as
// extended attributes with the prefix "hint.". It ignores unusable values, as MPI does.
typedef struct outcore_hints outcore_hints;

// A context. Pools, files and other objects belong to the context that made them. Threads may share a context and
// its objects. Each thread has its own error text.
typedef struct outcore_context outcore_context;

// A pool that is open.
typedef struct outcore_pool outcore_pool;

// Bytes of a file, in the order of a request: contiguous, strided, nested or a list. One request sends one message to
// each server that stores some of them. Regions belong to no file, and any number of requests may use them.
typedef struct outcore_regions outcore_regions;

// A request that was started.
typedef struct outcore_request outcore_request;

// The attributes of a name.
typedef struct outcore_status {
    // Length of a file in bytes; 0 for a directory.
    uint64_t length;
    // Time of the last write, in nanoseconds since 1970.
    uint64_t modified_ns;
    // Time of the last change of the attributes, in nanoseconds since 1970.
    uint64_t changed_ns;
    // A number that no other file or directory of the pool ever has.
    uint64_t handle;
    // Bytes of a stripe unit; 0 for a directory.
    uint64_t stripe_unit_bytes;
    // Number of servers of the file; 0 for a directory.
    uint32_t stripe_count;
    // 1 for a directory, 0 for a file.
    uint32_t is_directory;
    // Permission bits, at most 01777; for a directory 03777.
    uint32_t mode;
    // User id.
    uint32_t owner;
    // Group id.
    uint32_t group;
    // Number of the first server of a file; 0 for a directory.
    uint32_t first_server;
    // Always 0.
    uint32_t reserved[4];
} outcore_status;

// The function that `outcore_list` calls for each name, with the caller's argument, the name, and its attributes. A result
// other than 0 ends the listing. It must return: neither `longjmp` nor an exception may leave it.
typedef int (*outcore_visit)(void *argument, const char *name, const struct outcore_status *status);

// The function by which a process sends bytes to all others: it copies `bytes` bytes at `memory` of the process `root` to
// `memory` of all others. All processes call it in the same order. It returns 0, or another number as an error. It must
// return: neither `longjmp` nor an exception may leave it.
typedef int (*outcore_broadcast)(void *argument, void *memory, uint64_t bytes, uint64_t root);

// The processes of a parallel program. Each of them describes the same group. A process that passes an unusable group, or none,
// gets -EINVAL, and the others wait for it.
typedef struct outcore_group {
    // Number of this process, from 0 on.
    uint64_t rank;
    // Number of processes, at most 65536.
    uint64_t size;
    // The function by which they meet, such as MPI_Bcast. NULL will do for one process.
    outcore_broadcast broadcast;
    // Its first argument.
    void *argument;
    // Seconds until a process that does not take part counts as lost, the same on all; 0 means 600.
    double timeout_s;
} outcore_group;

// A process's exchange with all servers in a collective.
typedef struct outcore_exchange {
    // Messages to the servers.
    uint64_t messages;
    // Shares of pieces of a file, sent or received in messages.
    uint64_t shares;
    // Bytes of all shares.
    uint64_t bytes;
    // Bytes of the shares that were copied in memory on the way.
    uint64_t copied_bytes;
    // Bytes that servers read directly from the memory of the process.
    uint64_t direct_bytes;
    // Always 0.
    uint64_t reserved[3];
} outcore_exchange;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the library, such as "0.2.0".
const char *outcore_version(void);

// Returns the version of the interface of the library. A program compares it with OUTCORE_INTERFACE of its header.
int outcore_interface(void);

// Makes a context. For NULL, the result is -EINVAL.
int outcore_context_new(struct outcore_context **context);

// Frees a context. Its objects stay usable, but their errors have no text. NULL is ignored.
void outcore_context_free(struct outcore_context *context);

// Returns the text of the last error of this thread in the context: the need, the finding and one fix. It is empty if no
// call failed, and valid until the next call of this thread fails in the context.
const char *outcore_error_text(const struct outcore_context *context);

// Connects to a served pool.
//
// `url` is outcore://HOST:PORT of its manager; outcore+tls://HOST:PORT if it listens with TLS; or outcore:/PATH of its
// UNIX socket. With a stand-by manager it is outcore://HOST:PORT,HOST:PORT: the library connects to the manager that
// answers, and to the other one after a takeover. `key_file` is the file of the pool's key or a user's key; for NULL, the
// variable OUTCORE_KEY names it. A UNIX socket needs no key. Calls fail with -EIO after a server did not answer for
// `timeout_s` seconds; 0 means 60.
//
// Errors: -ENOENT (no key file), -EACCES (wrong key), -EIO (no server answers), -EINVAL.
int outcore_pool_connect(const struct outcore_context *context,
                         const char *url,
                         const char *key_file,
                         double timeout_s,
                         struct outcore_pool **pool);

// Opens or creates the pool in `count` directories of this machine, with its servers in this process.
//
// There is one directory for each server, best on separate disks; missing ones are created. The first one also holds
// the names of all files. To open a pool, pass all of its directories. `threads` is the number of concurrent requests
// in each directory; 0 means 4.
//
// Errors: -EBUSY (the pool is open already), -EINVAL (directories that are not one pool), -EACCES.
int outcore_pool_embed(const struct outcore_context *context,
                       const char *const *directories,
                       size_t count,
                       uint32_t threads,
                       struct outcore_pool **pool);

// Closes a pool, and frees the handle: ends the connections, or stops the servers. Files that are still open in it
// become unusable (-EBADF), but must be closed. NULL is ignored.
int outcore_pool_close(struct outcore_pool *pool);

// Makes an empty set of hints.
int outcore_hints_new(const struct outcore_context *context, struct outcore_hints **hints);

// Sets a hint. It replaces an earlier value of the same name.
int outcore_hints_set(const struct outcore_hints *hints, const char *name, const char *value);

// Frees a set of hints. NULL is ignored.
void outcore_hints_free(struct outcore_hints *hints);

// Opens a file of a pool, or creates it.
//
// `path` is its name in the pool, with "/" between names. `flags` are those of open(2): O_RDONLY, O_WRONLY or O_RDWR,
// with O_CREAT, O_EXCL, O_TRUNC and O_CLOEXEC. For a new file, `mode` has the permission bits, before the umask, and
// `hints` its layout, or NULL; missing directories above it are created.
//
// Errors: -ENOENT, -EEXIST (O_EXCL), -EACCES, -EINVAL (a directory, or other flags).
int outcore_file_open(const struct outcore_pool *pool,
                      const char *path,
                      int flags,
                      uint32_t mode,
                      const struct outcore_hints *hints,
                      struct outcore_file **file);

// Reads `bytes` bytes from byte `offset` on into `memory`. Returns their number, which is smaller only at the end of the
// file, or -errno.
int64_t outcore_file_read_at(const struct outcore_file *file,
                             uint64_t offset,
                             void *memory,
                             uint64_t bytes);

// Writes `bytes` bytes of `memory` from byte `offset` on. Returns 0 once all are written, or -errno.
//
// The bytes survive a power loss after `outcore_file_sync`.
//
// Errors: -EROFS (the file is open for reading), -ENOSPC, -EIO, -EREMOTEIO (earlier writes may be lost: write them again).
int outcore_file_write_at(const struct outcore_file *file,
                          uint64_t offset,
                          const void *memory,
                          uint64_t bytes);

// Returns the length of a file in bytes, or -errno.
int64_t outcore_file_length(const struct outcore_file *file);

// Makes a file longer or shorter. New bytes read as zeros.
int outcore_file_truncate(const struct outcore_file *file, uint64_t length);

// Reserves the disk space of the first `length` bytes of a file on its servers, and makes it so long if it is shorter. It
// never makes a file shorter. A server whose file system cannot reserve only makes the file longer.
//
// Errors: -EROFS (the file is open for reading), -ENOSPC (some servers may have reserved their part by then).
int outcore_file_reserve(const struct outcore_file *file,
                         uint64_t length);

// Returns once all completed writes to the file survive a power loss.
//
// Errors: -EREMOTEIO (earlier writes may be lost: write them again), -EIO, -ENOSPC.
int outcore_file_sync(const struct outcore_file *file);

// Closes a file, and frees the handle. It does not sync. NULL is ignored.
int outcore_file_close(struct outcore_file *file);

// Gives other processes a sign that this one lives, until `outcore_sign_withdraw` or the close of the file.
//
// The manager of the pool keeps the sign while a thread of this process renews it. If the process dies, the sign ends
// within the term of a lease: `lease_seconds` of the manager, 10 by default. A process that cannot reach the manager for
// so long, or is stopped, also loses its sign, and gives it again afterwards. `number` is below 2^63, and no other process
// may use it for this file: begin with a random number.
//
// Errors: -EEXIST (another process gives this sign), -EINVAL (the user has too many leases), -EIO.
int outcore_sign_give(const struct outcore_file *file,
                      uint64_t number);

// Withdraws a sign of this process.
int outcore_sign_withdraw(const struct outcore_file *file, uint64_t number);

// Returns 1 if a process gives the sign with this number, and 0 if none does, or -errno.
//
// Errors: -EBUSY (the manager has restarted and does not know yet), -ENOENT (the file was removed), -EIO.
int outcore_sign_is_given(const struct outcore_file *file,
                          uint64_t number);

// Gives a sign like `outcore_sign_give`, but to all processes that use the pool, until `outcore_pool_sign_withdraw` or the close
// of the pool. No other process may use `number` for this pool.
//
// Errors: those of `outcore_sign_give`, and -EACCES (the user may neither read nor write the top directory of the pool).
int outcore_pool_sign_give(const struct outcore_pool *pool,
                           uint64_t number);

// Withdraws a sign of this process for a pool.
int outcore_pool_sign_withdraw(const struct outcore_pool *pool, uint64_t number);

// Returns 1 if a process gives the sign with this number for the pool, and 0 if none does, or -errno.
//
// Errors: -EBUSY (the manager has restarted and does not know yet), -EACCES, -EIO.
int outcore_pool_sign_is_given(const struct outcore_pool *pool,
                               uint64_t number);

// Locks `bytes` bytes of a file from `offset` on against all other locks on them, of this process too, except that shared locks
// do not exclude each other. It never waits. Programs of a mount take such locks by `fcntl`. No lock hinders reads and writes.
//
// `lock` gets a number for `outcore_file_unlock`. The lock ends with the close of the file, too. If this process dies or is
// stopped, it ends within the term of a lease, as a sign of life does (`outcore_sign_give`).
//
// Errors: -EBUSY (another lock excludes it, or the manager has restarted and waits for earlier locks: try again), -EINVAL (no
// byte, or bytes behind 2^63; the user has too many leases or locks), -EACCES (a shared lock needs the right to read the file,
// another one the right to write), -EIO.
int outcore_file_lock(const struct outcore_file *file,
                      uint64_t offset,
                      uint64_t bytes,
                      int is_shared,
                      uint64_t *lock);

// Removes a lock of `outcore_file_lock`.
//
// Errors: -EREMOTEIO (the lock had ended, and others may have locked these bytes meanwhile), -EINVAL (no lock of this file),
// -EIO.
int outcore_file_unlock(const struct outcore_file *file,
                        uint64_t lock);

// Makes regions of `bytes` bytes from byte `offset` on.
int outcore_regions_contiguous(const struct outcore_context *context,
                               uint64_t offset,
                               uint64_t bytes,
                               struct outcore_regions **regions);

// Makes strided regions by the six parameters of PVFS (Ross et al. 2001): groups of bytes at regular distances.
//
// `location` is the first byte. A partial group of `first` bytes begins there, if `first` is not 0; the next group
// begins `stride - group` bytes after its end. Then come `count` groups of `group` bytes, `stride` bytes from start to
// start, and a partial group of `last` bytes, if `last` is not 0.
int outcore_regions_strided(const struct outcore_context *context,
                            uint64_t location,
                            uint64_t first,
                            uint64_t group,
                            uint64_t count,
                            uint64_t stride,
                            uint64_t last,
                            struct outcore_regions **regions);

// Makes regions of nested strides: any block of a flat array.
//
// A group has `group` bytes, and the first one begins at byte `location`. There are `levels` strides, at most 16, from
// the outermost to the innermost: stride `i` repeats its contents `counts[i]` times, `strides[i]` bytes from start to
// start. Without levels, there is one group.
int outcore_regions_nested(const struct outcore_context *context,
                           uint64_t location,
                           uint64_t group,
                           size_t levels,
                           const uint64_t *counts,
                           const uint64_t *strides,
                           struct outcore_regions **regions);

// Makes regions of a list: `count` runs, of `lengths[i]` bytes from byte `offsets[i]` on, in any order.
int outcore_regions_list(const struct outcore_context *context,
                         size_t count,
                         const uint64_t *offsets,
                         const uint64_t *lengths,
                         struct outcore_regions **regions);

// Makes regions of `count` nested strides, one after the other: `outcore_regions_nested` says what each of them is.
//
// Number i has groups of `groups[i]` bytes, from byte `locations[i]` on, and `levels[i]` strides. `counts` and `strides` have
// those of all of them, one after the other.
int outcore_regions_nested_list(const struct outcore_context *context,
                                size_t count,
                                const uint64_t *locations,
                                const uint64_t *groups,
                                const uint64_t *levels,
                                const uint64_t *counts,
                                const uint64_t *strides,
                                struct outcore_regions **regions);

// Returns the number of bytes of regions.
int64_t outcore_regions_bytes(const struct outcore_regions *regions);

// Frees regions. Requests that use them continue. NULL is ignored.
void outcore_regions_free(struct outcore_regions *regions);

// Reads regions of a file into `memory`, one after the other. `bytes` is the size of the memory and of the regions.
//
// Errors: -ENODATA (the file ends before the regions), -EINVAL (another number of bytes), -EBADMSG (a wrong checksum), -EIO.
int outcore_file_read(const struct outcore_file *file,
                      const struct outcore_regions *regions,
                      void *memory,
                      uint64_t bytes);

// Writes `memory` to regions of a file, one after the other. `bytes` is the size of the memory and of the regions.
//
// Errors: those of `outcore_file_write_at`, and -EINVAL (another number of bytes).
int outcore_file_write(const struct outcore_file *file,
                       const struct outcore_regions *regions,
                       const void *memory,
                       uint64_t bytes);

// Starts `outcore_file_read`. The memory belongs to the library until the request has ended. Bytes behind the end of a file
// that another client made shorter may be zeros, without an error.
int outcore_file_start_read(const struct outcore_file *file,
                            const struct outcore_regions *regions,
                            void *memory,
                            uint64_t bytes,
                            struct outcore_request **request);

// Starts `outcore_file_write`. The memory must not change until the request has ended.
int outcore_file_start_write(const struct outcore_file *file,
                             const struct outcore_regions *regions,
                             const void *memory,
                             uint64_t bytes,
                             struct outcore_request **request);

// Starts `outcore_file_sync` of all writes that have ended.
int outcore_file_start_sync(const struct outcore_file *file, struct outcore_request **request);

// Waits for the end of a request, at most `timeout_s` seconds; a negative time means without limit. Returns its outcome,
// or -ETIMEDOUT if it has not ended.
int outcore_request_wait(const struct outcore_request *request,
                         double timeout_s);

// Returns 1 if a request has ended, and 0 if it has not.
int outcore_request_done(const struct outcore_request *request);

// Adds 1 to an event descriptor, made by eventfd(2), once a request has ended. Several requests may use one descriptor. The
// caller may close it at any time.
//
// Errors: -EINVAL (no event descriptor).
int outcore_request_notify(const struct outcore_request *request,
                           int descriptor);

// Waits for the end of a request, and frees the handle. Its outcome is lost unless `outcore_request_wait` returned it. NULL
// is ignored.
void outcore_request_free(struct outcore_request *request);

// Reads from byte `offset` on into `count` pieces of memory, one after the other, as preadv(2) does. Returns the number of
// bytes, which is smaller than that of the pieces only at the end of the file, or -errno. The pieces must not overlap.
// Any number of them is one request.
int64_t outcore_file_readv_at(const struct outcore_file *file,
                              uint64_t offset,
                              const struct iovec *memory,
                              size_t count);

// Writes `count` pieces of memory, one after the other, from byte `offset` on. Returns 0 once all are written, or -errno as
// `outcore_file_write_at`; pwritev(2) returns the number of bytes.
int outcore_file_writev_at(const struct outcore_file *file,
                           uint64_t offset,
                           const struct iovec *memory,
                           size_t count);

// Reads regions of a file, one after the other, into `count` pieces of memory, one after the other. Regions and pieces have
// the same number of bytes, but need not end at the same places. See `outcore_file_read`.
int outcore_file_readv(const struct outcore_file *file,
                       const struct outcore_regions *regions,
                       const struct iovec *memory,
                       size_t count);

// Writes `count` pieces of memory to regions of a file; see `outcore_file_readv` and `outcore_file_write`.
int outcore_file_writev(const struct outcore_file *file,
                        const struct outcore_regions *regions,
                        const struct iovec *memory,
                        size_t count);

// Starts `outcore_file_readv`; see `outcore_file_start_read`. The list of the pieces is not used after the call.
int outcore_file_start_readv(const struct outcore_file *file,
                             const struct outcore_regions *regions,
                             const struct iovec *memory,
                             size_t count,
                             struct outcore_request **request);

// Starts `outcore_file_writev`; see `outcore_file_start_write`. The list of the pieces is not used after the call.
int outcore_file_start_writev(const struct outcore_file *file,
                              const struct outcore_regions *regions,
                              const struct iovec *memory,
                              size_t count,
                              struct outcore_request **request);

// Writes the attributes of a name to `status`.
//
// Errors: -ENOENT, -EACCES, -EIO (a server of the file does not answer).
int outcore_stat(const struct outcore_pool *pool, const char *path, struct outcore_status *status);

// Creates a directory, and the missing ones above it. `mode` has its permission bits, before the umask. If several clients
// create it at the same time, the call may succeed in more than one.
//
// Errors: -EEXIST, -EACCES.
int outcore_mkdir(const struct outcore_pool *pool,
                  const char *path,
                  uint32_t mode);

// Removes a file, or an empty directory.
//
// Errors: -ENOENT, -EACCES, -EEXIST (the directory is not empty).
int outcore_remove(const struct outcore_pool *pool, const char *path);

// Renames a file or directory. A file atomically replaces a file of the new name, and a directory an empty directory.
//
// Errors: -ENOENT, -EACCES, -EEXIST (the new name exists, and cannot be replaced).
int outcore_rename(const struct outcore_pool *pool,
                   const char *from,
                   const char *to);

// Calls `visit` for each name in a directory, sorted by name. Returns 0, the result of `visit` that ended the listing,
// or -errno.
int outcore_list(const struct outcore_pool *pool,
                 const char *path,
                 outcore_visit visit,
                 void *argument);

// Sets the permission bits of a name, at most 01777; for a directory 03777.
int outcore_chmod(const struct outcore_pool *pool, const char *path, uint32_t mode);

// Sets the owner and the group of a name; UINT32_MAX keeps the present one.
int outcore_chown(const struct outcore_pool *pool,
                  const char *path,
                  uint32_t owner,
                  uint32_t group);

// Sets the time of the last write, in nanoseconds since 1970.
int outcore_set_modified(const struct outcore_pool *pool, const char *path, uint64_t modified_ns);

// Copies an extended attribute to `value`, which has `size` bytes. Returns the length of the attribute. If `size` is
// smaller, nothing is copied and the result is -ERANGE, except for 0, which asks for the length.
//
// Errors: -ENOENT (no such name or attribute), -ERANGE, -EINVAL.
int64_t outcore_getxattr(const struct outcore_pool *pool,
                         const char *path,
                         const char *name,
                         void *value,
                         uint64_t size);

// Sets an extended attribute of at most 64 KiB.
int outcore_setxattr(const struct outcore_pool *pool,
                     const char *path,
                     const char *name,
                     const void *value,
                     uint64_t size);

// Removes an extended attribute.
int outcore_removexattr(const struct outcore_pool *pool, const char *path, const char *name);

// Creates an array of zeros, and opens it for reading and writing. Python opens it by `oc.open_array`, and Zarr software
// reads it.
//
// `shape` has the elements along each of the `dims` dimensions, and `chunk` those of a chunk, the unit of transfers: at
// most 64 MiB, best 1 to 16 MiB. `type` is the name of the elements' type, such as "float64", "complex64" or "int32".
// `order` is 'C' or 'F': the order of the elements in a chunk, and of the chunks.
//
// Errors: -EEXIST, -ENOSPC, -EINVAL (an unusable shape, type or order), -EACCES.
int outcore_array_create(const struct outcore_pool *pool,
                         const char *path,
                         size_t dims,
                         const uint64_t *shape,
                         const uint64_t *chunk,
                         const char *type,
                         char order,
                         struct outcore_array **array);

// Opens an array for reading (`flags` O_RDONLY) or for reading and writing (O_RDWR).
//
// Errors: -ENOENT, -EACCES, -EINVAL (no array of outcore, an array that a call left incomplete, or one that grows),
// -EBADMSG, -ENODATA (damaged files).
int outcore_array_open(const struct outcore_pool *pool,
                       const char *path,
                       int flags,
                       struct outcore_array **array);

// Returns the number of dimensions of an array.
int64_t outcore_array_dims(const struct outcore_array *array);

// Copies the elements along each dimension of an array to `shape`, and those of a chunk to `chunk`. NULL is ignored.
int outcore_array_shape(const struct outcore_array *array,
                        uint64_t *shape,
                        uint64_t *chunk);

// Returns the name of the type of an array's elements, such as "float64"; NULL for NULL. It is valid until the end of the
// program.
const char *outcore_array_type(const struct outcore_array *array);

// Reads a box of elements into `memory`, in C order. The box has `count` elements along each dimension, from index `start`
// on; `bytes` is its size.
//
// Errors: -EINVAL (a box outside the array, or another number of bytes), -EBADMSG (a wrong checksum), -EIO.
int outcore_array_read(const struct outcore_array *array,
                       const uint64_t *start,
                       const uint64_t *count,
                       void *memory,
                       uint64_t bytes);

// Writes a box of elements from `memory`, in C order; see `outcore_array_read`. It touches no other elements.
//
// Errors: -EROFS (the array is open for reading), -EINVAL, -ENOSPC, -EREMOTEIO (earlier writes may be lost), -EIO.
int outcore_array_write(const struct outcore_array *array,
                        const uint64_t *start,
                        const uint64_t *count,
                        const void *memory,
                        uint64_t bytes);

// Starts `outcore_array_read`. The memory belongs to the library until the request has ended.
int outcore_array_start_read(const struct outcore_array *array,
                             const uint64_t *start,
                             const uint64_t *count,
                             void *memory,
                             uint64_t bytes,
                             struct outcore_request **request);

// Starts `outcore_array_write`. The memory must not change until the request has ended.
int outcore_array_start_write(const struct outcore_array *array,
                              const uint64_t *start,
                              const uint64_t *count,
                              const void *memory,
                              uint64_t bytes,
                              struct outcore_request **request);

// Returns once all completed writes to the array survive a power loss.
//
// Errors: -EREMOTEIO (earlier writes may be lost: write them again), -EIO, -ENOSPC.
int outcore_array_sync(const struct outcore_array *array);

// Closes an array, and frees the handle. Requests in flight continue. It does not sync. NULL is ignored.
int outcore_array_close(struct outcore_array *array);

// Writes an array from the memory of all processes of a group; each of them makes this call with the same array.
//
// This process gives `boxes` boxes, or 0. Box number i begins at index `start[i * dims]` and has `count[i * dims]` elements
// along the first dimension, and so on. The elements lie in `memory` in C order, one box after the other; `bytes` is the
// size of all of them. Boxes must not overlap, also those of several processes. Elements in no box stay as they are.
//
// The call returns on every process when the whole array is durable. Until then the array is marked incomplete on disk.
// After a failure it stays incomplete, and the call fails on every process. `exchange` gets counts, unless it is NULL.
//
// Errors: -EINVAL (the processes do not agree, or boxes that overlap or leave the array), -EROFS, -EIO (a process or a
// server failed or is missing), and the error of any process on all of them.
int outcore_array_write_all(const struct outcore_array *array,
                            const struct outcore_group *group,
                            size_t boxes,
                            const uint64_t *start,
                            const uint64_t *count,
                            const void *memory,
                            uint64_t bytes,
                            struct outcore_exchange *exchange);

// Reads an array into the memory of all processes of a group; see `outcore_array_write_all`. Boxes may overlap, as ghost
// cells do.
int outcore_array_read_all(const struct outcore_array *array,
                           const struct outcore_group *group,
                           size_t boxes,
                           const uint64_t *start,
                           const uint64_t *count,
                           void *memory,
                           uint64_t bytes,
                           struct outcore_exchange *exchange);

// Writes a file from the memory of all processes of a group; each of them makes this call with the same file.
//
// This process gives the bytes of `regions`, one after the other in `memory`; `bytes` is the size of both. Regions without
// bytes give nothing. No process learns the regions of the others. If several processes give the same byte, each block of
// 64 KiB gets the bytes of one of them. The regions have at most 524288 nested strides and runs of a list, all processes
// together, and end at 4 TiB or before. Their bytes ascend; if they do not, the call copies them, and they have at most 65536
// runs. The call returns on every process when all of it is written. A later `outcore_file_sync` by any process makes it
// durable; on each process, it reports a server that restarted between.
//
// Errors: those of `outcore_array_write_all`, and -EINVAL (regions of one process that overlap). After a failure, some regions
// may be written.
int outcore_file_write_all(const struct outcore_file *file,
                           const struct outcore_group *group,
                           const struct outcore_regions *regions,
                           const void *memory,
                           uint64_t bytes,
                           struct outcore_exchange *exchange);

// Reads a file into the memory of all processes of a group; see `outcore_file_write_all`. Regions may overlap.
//
// Errors: those of `outcore_array_read_all`, and -ENODATA (the file ends before the regions of a process).
int outcore_file_read_all(const struct outcore_file *file,
                          const struct outcore_group *group,
                          const struct outcore_regions *regions,
                          void *memory,
                          uint64_t bytes,
                          struct outcore_exchange *exchange);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTCORE_H */
