/* One access to a file: bytes of its view from or to memory of a datatype. */

#include "mpi_io.h"

#include <errno.h>
#include <stdlib.h>

/* Requests in flight, runs in the list of a request, and bytes that are packed at once. */
#define MOST_REQUESTS 8
#define MOST_RUNS 65536
#define WINDOW_BYTES ((int64_t)32 << 20)
/* Nested strides with fewer runs join the list of the runs beside them. */
#define FEW_RUNS 256

/* Sends the parts of a view as requests. */
struct sender {
    struct sink sink;
    const struct open_file *file;
    int is_write;
    char *memory; /* of the next part */
    uint64_t *offsets, *lengths;
    int64_t runs, listed_bytes;
    outcore_request *requests[MOST_REQUESTS];
    int started;
    int64_t result;
};

/* Waits for a request, and keeps the first error. Those of later requests would replace its text. */
static void finish(struct sender *sender, int place) {
    if (sender->requests[place] != NULL) {
        if (sender->result == 0) {
            sender->result = outcore_request_wait(sender->requests[place], -1);
        }
        outcore_request_free(sender->requests[place]);
        sender->requests[place] = NULL;
    }
}

static int start(struct sender *sender, int result, outcore_regions *regions, int64_t bytes) {
    int place = sender->started++ % MOST_REQUESTS;
    const outcore_file *file = sender->file->file;
    finish(sender, place);
    if (result == 0 && sender->result == 0) {
        uint64_t size = (uint64_t)bytes;
        result = sender->is_write ? outcore_file_start_write(file, regions, sender->memory, size, &sender->requests[place])
                                  : outcore_file_start_read(file, regions, sender->memory, size, &sender->requests[place]);
        sender->memory += bytes;
    }
    outcore_regions_free(regions);
    if (result < 0 && sender->result == 0) {
        sender->result = result;
    }
    return sender->result != 0;
}

static int send_list(struct sender *sender) {
    outcore_regions *regions = NULL;
    const outcore_context *context = sender->file->context;
    int64_t bytes = sender->listed_bytes;
    int result;
    if (sender->runs == 0) {
        return 0;
    }
    if (sender->runs == 1) {
        result = outcore_regions_contiguous(context, sender->offsets[0], sender->lengths[0], &regions);
    } else {
        result = outcore_regions_list(context, (size_t)sender->runs, sender->offsets, sender->lengths, &regions);
    }
    sender->runs = sender->listed_bytes = 0;
    return start(sender, result, regions, bytes);
}

static int add_run(struct sender *sender, uint64_t offset, uint64_t bytes) {
    int64_t last = sender->runs - 1;
    sender->listed_bytes += (int64_t)bytes;
    if (last >= 0 && sender->offsets[last] + sender->lengths[last] == offset) {
        sender->lengths[last] += bytes;
        return 0;
    }
    if (last + 1 == MOST_RUNS) {
        sender->listed_bytes -= (int64_t)bytes;
        if (send_list(sender) != 0) {
            return 1;
        }
        sender->listed_bytes = (int64_t)bytes;
    }
    sender->offsets[sender->runs] = offset;
    sender->lengths[sender->runs++] = bytes;
    return 0;
}

static int add_runs(struct sender *sender, uint64_t offset, uint64_t run, int levels, const uint64_t *counts,
                    const uint64_t *strides) {
    int result = 0;
    if (levels == 0) {
        return add_run(sender, offset, run);
    }
    for (uint64_t i = 0; result == 0 && i < counts[0]; i++) {
        result = add_runs(sender, offset + i * strides[0], run, levels - 1, counts + 1, strides + 1);
    }
    return result;
}

static int add_nested(struct sink *sink, int64_t offset, int64_t run, int levels, const uint64_t *counts,
                      const uint64_t *strides) {
    struct sender *sender = (struct sender *)sink;
    outcore_regions *regions = NULL;
    int64_t runs = 1;
    for (int i = 0; i < levels; i++) {
        runs *= (int64_t)counts[i];
    }
    if (runs <= FEW_RUNS) {
        return add_runs(sender, (uint64_t)offset, (uint64_t)run, levels, counts, strides);
    }
    if (send_list(sender) != 0) {
        return 1;
    }
    int result = outcore_regions_nested(sender->file->context, (uint64_t)offset, (uint64_t)run, (size_t)levels, counts,
                                        strides, &regions);
    return start(sender, result, regions, runs * run);
}

/* Moves the bytes of a view from position `from` to `to`. Returns 0 or -errno. */
static int64_t move_parts(const struct open_file *file, int is_write, int64_t from, int64_t to, char *memory) {
    struct sender sender = {.sink = {add_nested}, .file = file, .is_write = is_write, .memory = memory};
    sender.offsets = malloc(MOST_RUNS * sizeof *sender.offsets);
    sender.lengths = malloc(MOST_RUNS * sizeof *sender.lengths);
    if (sender.offsets == NULL || sender.lengths == NULL) {
        sender.result = -ENOMEM;
    } else if (emit(&sender.sink, &file->view.tree, 0, from, to) == 0) {
        send_list(&sender);
    }
    for (int i = 0; i < MOST_REQUESTS; i++) {
        finish(&sender, i);
    }
    free(sender.offsets);
    free(sender.lengths);
    return sender.result;
}

/* Moves bytes of a view from or to contiguous memory. Returns their number, which is smaller at the end of the file, or
 * -errno. */
static int64_t move_bytes(const struct open_file *file, int is_write, int64_t from, int64_t bytes, char *memory) {
    const struct tree *tree = &file->view.tree;
    if (tree->bytes == 0) {
        return 0;
    }
    if (tree->kind == RUN) {
        uint64_t offset = (uint64_t)(tree->offset + from);
        int64_t result = is_write ? outcore_file_write_at(file->file, offset, memory, (uint64_t)bytes)
                                  : outcore_file_read_at(file->file, offset, memory, (uint64_t)bytes);
        return is_write && result == 0 ? bytes : result;
    }
    int64_t result = move_parts(file, is_write, from, from + bytes, memory);
    if (result == -ENODATA && !is_write) {
        int64_t length = outcore_file_length(file->file);
        if (length < 0) {
            return length;
        }
        int64_t end = bytes_below(tree, from + bytes, length);
        bytes = end > from ? end - from : 0;
        result = bytes > 0 ? move_parts(file, is_write, from, from + bytes, memory) : 0;
    }
    return result < 0 ? result : bytes;
}

/* Moves bytes of memory that is not contiguous, window by window. */
static int64_t move_windows(const struct open_file *file, int is_write, int64_t from, int64_t bytes, const struct tree *tree,
                            char *memory) {
    int64_t room = bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES, moved = 0;
    char *packed = malloc((size_t)room);
    if (packed == NULL) {
        return -ENOMEM;
    }
    while (moved < bytes) {
        int64_t wanted = bytes - moved < room ? bytes - moved : room;
        if (is_write) {
            pack_bytes(tree, memory, moved, moved + wanted, packed);
        }
        int64_t result = move_bytes(file, is_write, from + moved, wanted, packed);
        if (result < 0) {
            free(packed);
            return result;
        }
        if (!is_write) {
            unpack_bytes(tree, memory, moved, moved + result, packed);
        }
        moved += result;
        if (result < wanted) {
            break;
        }
    }
    free(packed);
    return moved;
}

/* Finds the bytes of an access, which begins at an offset of the view, in elementary types. */
int access_of(const struct open_file *file, MPI_Offset offset, MPI_Count count, MPI_Datatype type, struct access *access) {
    const struct tree *one;
    MPI_Count low, extent;
    int64_t end;
    int class = tree_of(file->comm, type, &one);
    if (class != 0) {
        return class;
    }
    if (__builtin_mul_overflow(offset, file->view.etype_bytes, &access->from)
        || __builtin_mul_overflow(count, one->bytes, &access->bytes)
        || __builtin_add_overflow(access->from, access->bytes, &end)) {
        return failed(MPI_ERR_ARG, "need an access that ends before 2^63 bytes; pass a smaller offset or count");
    }
    if (access->bytes > 0) {
        PMPI_Type_get_extent_x(type, &low, &extent);
        access->memory = loop_tree(one, count, extent);
    }
    return 0;
}

/* Reads or writes the bytes of an access. `moved` gets their number. */
int transfer_access(struct open_file *file, int is_write, const struct access *access, char *memory, int64_t *moved) {
    uint64_t lock;
    int class;
    *moved = 0;
    if (access->bytes == 0) {
        return 0;
    }
    if (file->is_atomic && (class = lock_bytes(file, is_write, access, &lock)) != 0) {
        return class;
    }
    const struct tree *tree = &access->memory;
    int64_t result = tree->kind == RUN ? move_bytes(file, is_write, access->from, access->bytes, memory + tree->offset)
                                       : move_windows(file, is_write, access->from, access->bytes, tree, memory);
    class = failed_call(file->context, result, file->path);
    *moved = result > 0 ? result : 0;
    if (is_write) {
        /* After its end, since a sync at the same time need not have it. */
        note_change(file);
    }
    return file->is_atomic ? unlock_bytes(file, lock, class) : class;
}

/* Reads or writes from an offset of the view, in elementary types. */
int transfer(struct open_file *file, int is_write, MPI_Offset offset, void *memory, MPI_Count count, MPI_Datatype type,
             int64_t *moved) {
    struct access access;
    int class = access_of(file, offset, count, type, &access);
    *moved = 0;
    return class != 0 ? class : transfer_access(file, is_write, &access, memory, moved);
}
