/* Copies between memory of a datatype and contiguous memory, by loops over the nested strides of the datatype. */

#include "mpi_io.h"

#include <string.h>

/* Copies runs of a constant size, which the compiler turns into loads and stores. */
#define COPY_RUNS(BYTES)                                              \
    for (int64_t i = 0; i < count; i++) {                             \
        if (is_packing) {                                             \
            memcpy(packed + i * (BYTES), memory + i * stride, BYTES); \
        } else {                                                      \
            memcpy(memory + i * stride, packed + i * (BYTES), BYTES); \
        }                                                             \
    }                                                                 \
    break

static inline void copy_runs(int is_packing, char *memory, int64_t stride, int64_t count, int64_t run, char *packed) {
    switch (run) {
    case 1: COPY_RUNS(1);
    case 2: COPY_RUNS(2);
    case 4: COPY_RUNS(4);
    case 8: COPY_RUNS(8);
    case 16: COPY_RUNS(16);
    default: COPY_RUNS((size_t)run);
    }
}

static char *copy(int is_packing, const struct tree *tree, char *memory, int64_t from, int64_t to, char *packed);

static char *copy_loop(int is_packing, const struct tree *tree, char *memory, int64_t from, int64_t to, char *packed) {
    const struct tree *child = tree->child;
    int64_t first = 0, end = tree->count, head = 0, tail = 0;
    /* Divisions would take as long as the copy of the innermost loop. */
    if (from > 0 || to < tree->bytes) {
        first = from / child->bytes, head = from % child->bytes;
        end = to / child->bytes, tail = to % child->bytes;
    }
    if (first == end) {
        return copy(is_packing, child, memory + first * tree->stride, head, tail, packed);
    }
    if (head > 0) {
        packed = copy(is_packing, child, memory + first * tree->stride, head, child->bytes, packed);
        first++;
    }
    if (child->kind == RUN) {
        copy_runs(is_packing, memory + first * tree->stride + child->offset, tree->stride, end - first, child->bytes, packed);
        packed += (end - first) * child->bytes;
    } else {
        for (int64_t i = first; i < end; i++) {
            packed = copy(is_packing, child, memory + i * tree->stride, 0, child->bytes, packed);
        }
    }
    return tail > 0 ? copy(is_packing, child, memory + end * tree->stride, 0, tail, packed) : packed;
}

/* Copies the bytes from position `from` to `to` of a tree, and returns the end of their packed form. */
static char *copy(int is_packing, const struct tree *tree, char *memory, int64_t from, int64_t to, char *packed) {
    memory += tree->offset;
    if (from >= to) {
        return packed;
    }
    if (tree->kind == RUN) {
        copy_runs(is_packing, memory + from, 0, 1, to - from, packed);
        return packed + (to - from);
    }
    if (tree->kind == LOOP) {
        return copy_loop(is_packing, tree, memory, from, to, packed);
    }
    int64_t i = entry_at(tree, from);
    for (int64_t start = i > 0 ? tree->ends[i - 1] : 0; i < tree->entries && start < to; start = tree->ends[i++]) {
        int64_t low = from > start ? from - start : 0;
        int64_t high = (to < tree->ends[i] ? to : tree->ends[i]) - start;
        if (tree->children != NULL) {
            packed = copy(is_packing, tree->children[i], memory + tree->offsets[i], low, high, packed);
        } else {
            copy_runs(is_packing, memory + tree->offsets[i] + low, 0, 1, high - low, packed);
            packed += high - low;
        }
    }
    return packed;
}

void pack_bytes(const struct tree *tree, char *memory, int64_t from, int64_t to, char *packed) {
    copy(1, tree, memory, from, to, packed);
}

void unpack_bytes(const struct tree *tree, char *memory, int64_t from, int64_t to, char *packed) {
    copy(0, tree, memory, from, to, packed);
}
