/* Accesses of all processes of a file together: one collective that the servers direct. Each process tells them the bytes of its
 * own view, and no process learns the views of the others. */

#include "mpi_io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of memory that are packed at once. */
#define WINDOW_BYTES ((int64_t)64 << 20)
/* Bytes of packed memory, at most, that a file keeps for the next call: new memory costs as much as packing. */
#define KEPT_BYTES ((int64_t)16 << 20)
/* Nested strides in one collective: those of all processes, and those of one. */
#define MOST_PARTS (1 << 19)
#define MOST_OF_ONE 65536
/* Levels of them, on average. */
#define LEVELS 4

/* Collects the parts of a view, as far as there is room. */
struct collector {
    struct sink sink;
    size_t parts, most, used; /* `used` levels */
    int64_t bytes;
    uint64_t *offsets, *runs, *levels, *counts, *strides;
};

static int add_part(struct sink *sink, int64_t offset, int64_t run, int levels, const uint64_t *counts, const uint64_t *strides) {
    struct collector *all = (struct collector *)sink;
    size_t last = all->parts - 1;
    if (levels == 0 && all->parts > 0 && all->levels[last] == 0 && all->offsets[last] + all->runs[last] == (uint64_t)offset) {
        all->runs[last] += (uint64_t)run;
        all->bytes += run;
        return 0;
    }
    if (all->parts == all->most || all->used + (size_t)levels > LEVELS * all->most + MOST_LEVELS) {
        return 1;
    }
    all->offsets[all->parts] = (uint64_t)offset;
    all->runs[all->parts] = (uint64_t)run;
    all->levels[all->parts++] = (uint64_t)levels;
    for (int i = 0; i < levels; i++) {
        all->counts[all->used] = counts[i];
        all->strides[all->used++] = strides[i];
        run *= (int64_t)counts[i];
    }
    all->bytes += run;
    return 0;
}

/* Makes regions of the bytes of a view from position `from` on, at most to `to`. `bytes` gets their number. Returns 0 or -errno. */
static int regions_of(const struct open_file *file, size_t most, int64_t from, int64_t to, outcore_regions **regions,
                      int64_t *bytes) {
    size_t levels = LEVELS * most + MOST_LEVELS;
    struct collector all = {.sink = {add_part}, .most = most};
    int result = -ENOMEM;
    all.levels = malloc(most * sizeof *all.levels);
    all.offsets = malloc(most * sizeof *all.offsets);
    all.runs = malloc(most * sizeof *all.runs);
    all.counts = malloc(levels * sizeof *all.counts);
    all.strides = malloc(levels * sizeof *all.strides);
    if (all.levels != NULL && all.offsets != NULL && all.runs != NULL && all.counts != NULL && all.strides != NULL) {
        emit(&all.sink, &file->view.tree, 0, from, to);
        *bytes = all.bytes;
        result = outcore_regions_nested_list(file->context, all.parts, all.offsets, all.runs, all.levels, all.counts,
                                             all.strides, regions);
    }
    free(all.levels);
    free(all.offsets);
    free(all.runs);
    free(all.counts);
    free(all.strides);
    return result;
}

/* The function by which the library passes bytes of one process to all. */
static int broadcast(void *argument, void *memory, uint64_t bytes, uint64_t root) {
    struct open_file *file = argument;
    MPI_Request request;
    /* After an error, MPI may still use its memory. */
    char *message = file->is_broken ? NULL : malloc((size_t)bytes);
    if (message == NULL) {
        return 1;
    }
    memcpy(message, memory, (size_t)bytes);
    if (PMPI_Ibcast(message, (int)bytes, MPI_BYTE, (int)root, file->comm, &request) != MPI_SUCCESS
        || wait_for_all(file, &request) != 0) {
        return 1;
    }
    memcpy(memory, message, (size_t)bytes);
    free(message);
    return 0;
}

/* Memory for packed bytes, which the file keeps until `release_packed`. Returns NULL if there is none. */
static char *take_packed(struct open_file *file, int64_t bytes) {
    if (file->packed_bytes < bytes) {
        free(file->packed);
        file->packed = malloc((size_t)bytes);
        file->packed_bytes = file->packed != NULL ? bytes : 0;
    }
    return file->packed;
}

static void release_packed(struct open_file *file) {
    if (file->packed_bytes > KEPT_BYTES) {
        free(file->packed);
        file->packed = NULL;
        file->packed_bytes = 0;
    }
}

/* This process's part in one collective. With NULL instead of regions, it fails on all processes. Returns the number of bytes that
 * it moved, or -errno. */
static int64_t move_together(struct open_file *file, int is_write, const outcore_group *group, const outcore_regions *regions,
                             const struct tree *tree, char *memory, int64_t moved, int64_t bytes) {
    int is_packed = bytes > 0 && tree->kind != RUN;
    char *place = bytes > 0 ? memory + tree->offset + moved : NULL;
    if (is_packed && (place = take_packed(file, bytes)) == NULL) {
        regions = NULL;
    } else if (is_packed && is_write) {
        pack_bytes(tree, memory, moved, moved + bytes, place);
    }
    int result = is_write ? outcore_file_write_all(file->file, group, regions, place, (uint64_t)bytes, NULL)
                          : outcore_file_read_all(file->file, group, regions, place, (uint64_t)bytes, NULL);
    if (is_packed) {
        if (result == 0 && !is_write) {
            unpack_bytes(tree, memory, moved, moved + bytes, place);
        }
        release_packed(file);
        result = place == NULL ? -ENOMEM : result;
    }
    return result < 0 ? result : bytes;
}

/* Leaves out the bytes of a read behind the end of the file, whose length process 0 finds. */
static int clip(struct open_file *file, struct access *access, int class) {
    MPI_Offset length = file->rank == 0 && class == 0 ? outcore_file_length(file->file) : -1;
    if (file->rank == 0 && class == 0) {
        class = failed_call(file->context, length, file->path);
    }
    class = agreed_most(file, class, &length);
    if (class == 0 && access->bytes > 0) {
        int64_t end = bytes_below(&file->view.tree, access->from + access->bytes, length);
        access->bytes = end > access->from ? end - access->from : 0;
    }
    return class;
}

int transfer_all(struct open_file *file, int class, int is_write, MPI_Offset offset, void *memory, MPI_Count count,
                 MPI_Datatype type, int64_t *moved) {
    int size;
    struct access access = {0};
    PMPI_Comm_size(file->comm, &size);
    if (size == 1 || file->is_atomic) {
        class = agreed(file, class);
        return class != 0 ? class : agreed(file, transfer(file, is_write, offset, memory, count, type, moved));
    }
    outcore_group group = {.rank = (uint64_t)file->rank, .size = (uint64_t)size, .broadcast = broadcast, .argument = file,
                           .timeout_s = file->patience_s};
    size_t most = MOST_PARTS / (size_t)size < MOST_OF_ONE ? MOST_PARTS / (size_t)size : MOST_OF_ONE;
    class = class != 0 ? class : access_of(file, offset, count, type, &access);
    *moved = 0;
    if (file->view.tree.bytes == 0) {
        access.bytes = 0;
    }
    if (!is_write && (class = clip(file, &access, class)) != 0) {
        return class;
    }
    for (;;) {
        MPI_Offset has_more = *moved < access.bytes;
        class = agreed_most(file, class, &has_more);
        if (class != 0 || !has_more) {
            return class;
        }
        /* From here on, all processes have come: a process that the servers do not hear of is dead. */
        outcore_regions *regions = NULL;
        int64_t to = access.bytes, bytes = 0;
        if (access.bytes > 0 && access.memory.kind != RUN && to - *moved > WINDOW_BYTES) {
            to = *moved + WINDOW_BYTES;
        }
        int64_t result = regions_of(file, most, access.from + *moved, access.from + to, &regions, &bytes);
        class = failed_call(file->context, result, file->path);
        /* Without regions too: the others must not wait. */
        result = move_together(file, is_write, &group, regions, &access.memory, memory, *moved, bytes);
        outcore_regions_free(regions);
        class = class != 0 ? class : failed_call(file->context, result, file->path);
        *moved += result > 0 ? result : 0;
        if (is_write && result >= 0) {
            note_change(file);
        }
    }
}
