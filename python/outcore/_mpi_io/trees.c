/* Bytes in nested strides. Trees are made as flat as possible: runs that touch are one run, loops in loops one loop. */

#include "mpi_io.h"

#include <stdlib.h>

struct block {
    struct block *next;
};

void *arena_alloc(struct arena *arena, uint64_t count, uint64_t bytes) {
    uint64_t all;
    struct block *block;
    if (__builtin_mul_overflow(count, bytes, &all) || __builtin_add_overflow(all, 16, &all) || (block = malloc(all)) == NULL) {
        return NULL;
    }
    block->next = arena->blocks;
    arena->blocks = block;
    return (char *)block + 16;
}

void arena_free(struct arena *arena) {
    while (arena->blocks != NULL) {
        struct block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
}

const struct tree *kept(struct arena *arena, struct tree tree) {
    struct tree *copy = arena_alloc(arena, 1, sizeof tree);
    if (copy != NULL) {
        *copy = tree;
    }
    return copy;
}

struct tree run_tree(int64_t offset, int64_t bytes) {
    return (struct tree){.kind = RUN, .offset = offset, .bytes = bytes};
}

struct tree loop_tree(const struct tree *child, int64_t count, int64_t stride) {
    if (count <= 0 || child->bytes == 0) {
        return run_tree(0, 0);
    }
    struct tree made = *child;
    if (count == 1) {
        return made;
    }
    made.bytes = child->bytes * count;
    if (child->kind == RUN && stride == child->bytes) {
        return made;
    }
    if (child->kind == LOOP && stride == child->count * child->stride) {
        made.count = child->count * count;
        return made;
    }
    return (struct tree){.kind = LOOP, .bytes = made.bytes, .count = count, .stride = stride, .child = child};
}

/* A tree that is repeated without end. Its number of bytes means nothing. */
struct tree endless_tree(const struct tree *child, int64_t offset, int64_t extent) {
    struct tree made = *child;
    if (child->bytes == 0) {
        return run_tree(0, 0);
    }
    if (child->kind == RUN && extent == child->bytes) {
        return run_tree(offset + child->offset, INT64_MAX);
    }
    if (child->kind == LOOP && extent == child->count * child->stride) {
        made.offset += offset;
        made.count = made.bytes = INT64_MAX;
        return made;
    }
    return (struct tree){
        .kind = LOOP, .offset = offset, .bytes = INT64_MAX, .count = INT64_MAX, .stride = extent, .child = child};
}

struct builder builder_new(struct arena *arena, int64_t room) {
    struct builder made = {.arena = arena, .room = room};
    made.offsets = arena_alloc(arena, (uint64_t)room, sizeof(int64_t));
    made.lengths = arena_alloc(arena, (uint64_t)room, sizeof(int64_t));
    made.children = arena_alloc(arena, (uint64_t)room, sizeof(struct tree *));
    made.failed = made.offsets == NULL || made.lengths == NULL || made.children == NULL;
    return made;
}

/* Adds a tree; there is room for as many as the builder was made for. NULL stands for one for which there was no memory. */
void builder_add(struct builder *builder, int64_t offset, const struct tree *entry) {
    if (entry == NULL || builder->failed || builder->entries == builder->room) {
        builder->failed = 1;
        return;
    }
    if (entry->bytes == 0) {
        return;
    }
    int64_t last = builder->entries - 1;
    int is_run = entry->kind == RUN;
    int64_t start = is_run ? offset + entry->offset : offset;
    if (is_run && last >= 0 && builder->children[last] == NULL
        && builder->offsets[last] + builder->lengths[last] == start) {
        builder->lengths[last] += entry->bytes;
        return;
    }
    builder->offsets[last + 1] = start;
    builder->lengths[last + 1] = entry->bytes;
    builder->children[last + 1] = NULL;
    if (!is_run) {
        builder->children[last + 1] = entry;
        builder->has_children = 1;
    }
    builder->entries++;
}

static int is_regular(const struct builder *builder) {
    int64_t stride = builder->offsets[1] - builder->offsets[0];
    for (int64_t i = 1; i < builder->entries; i++) {
        if (builder->lengths[i] != builder->lengths[0] || builder->children[i] != builder->children[0]
            || builder->offsets[i] - builder->offsets[i - 1] != stride) {
            return 0;
        }
    }
    return 1;
}

/* Returns the tree of all entries, or NULL if memory is short. */
const struct tree *builder_end(struct builder *builder) {
    struct arena *arena = builder->arena;
    if (builder->failed) {
        return NULL;
    }
    if (builder->entries == 0) {
        return kept(arena, run_tree(0, 0));
    }
    struct tree first = builder->children[0] != NULL ? *builder->children[0] : run_tree(0, builder->lengths[0]);
    if (builder->entries == 1) {
        first.offset += builder->offsets[0];
        return kept(arena, first);
    }
    if (is_regular(builder)) {
        const struct tree *child = kept(arena, first);
        if (child == NULL) {
            return NULL;
        }
        struct tree loop = loop_tree(child, builder->entries, builder->offsets[1] - builder->offsets[0]);
        loop.offset += builder->offsets[0];
        return kept(arena, loop);
    }
    int64_t sum = 0;
    for (int64_t i = 0; i < builder->entries; i++) {
        const struct tree *child = builder->children[i];
        if (builder->has_children && child == NULL
            && (builder->children[i] = kept(arena, run_tree(0, builder->lengths[i]))) == NULL) {
            return NULL;
        }
        builder->lengths[i] = sum += builder->lengths[i];
    }
    return kept(arena, (struct tree){.kind = LIST, .bytes = sum, .entries = builder->entries, .offsets = builder->offsets,
                                     .ends = builder->lengths,
                                     .children = builder->has_children ? builder->children : NULL});
}

/* The entry of a list that contains a position. */
int64_t entry_at(const struct tree *tree, int64_t position) {
    int64_t low = 0, high = tree->entries - 1;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (tree->ends[middle] > position) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Returns the offset of the byte at a position, which must be in the tree. */
int64_t locate(const struct tree *tree, int64_t position) {
    int64_t offset = 0;
    for (;;) {
        offset += tree->offset;
        if (tree->kind == RUN) {
            return offset + position;
        }
        if (tree->kind == LOOP) {
            offset += position / tree->child->bytes * tree->stride;
            position %= tree->child->bytes;
            tree = tree->child;
        } else {
            int64_t entry = entry_at(tree, position);
            position -= entry > 0 ? tree->ends[entry - 1] : 0;
            offset += tree->offsets[entry];
            if (tree->children == NULL) {
                return offset + position;
            }
            tree = tree->children[entry];
        }
    }
}

/* Returns how many of the first `most` bytes of a tree without decreasing offsets lie before `end`. */
int64_t bytes_below(const struct tree *tree, int64_t most, int64_t end) {
    int64_t low = 0, high = most;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (locate(tree, middle) < end) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Whether the offsets of a finite tree never decrease. */
int is_monotone(const struct tree *tree) {
    if (tree->kind == RUN) {
        return 1;
    }
    if (tree->kind == LOOP) {
        return is_monotone(tree->child)
               && locate(tree->child, tree->child->bytes - 1) - locate(tree->child, 0) < tree->stride;
    }
    for (int64_t i = 0; i < tree->entries; i++) {
        if ((tree->children != NULL && !is_monotone(tree->children[i]))
            || (i > 0 && locate(tree, tree->ends[i - 1] - 1) >= locate(tree, tree->ends[i - 1]))) {
            return 0;
        }
    }
    return 1;
}

/* Adds the loops of a tree to `levels`. Returns their number, or -1 if it is no nested stride. */
static int chain(const struct tree *tree, int levels, uint64_t *counts, uint64_t *strides, int64_t *offset, int64_t *run) {
    for (; tree->kind == LOOP && levels < MOST_LEVELS && tree->stride > 0; tree = tree->child) {
        *offset += tree->offset;
        counts[levels] = (uint64_t)tree->count;
        strides[levels++] = (uint64_t)tree->stride;
    }
    *offset += tree->offset;
    *run = tree->bytes;
    return tree->kind == RUN ? levels : -1;
}

static int emit_loop(struct sink *sink, const struct tree *tree, int64_t base, int64_t from, int64_t to) {
    const struct tree *child = tree->child;
    int64_t first = from / child->bytes, end = to / child->bytes, result = 0;
    int64_t head = from % child->bytes, tail = to % child->bytes;
    if (first == end) {
        return emit(sink, child, base + first * tree->stride, head, tail);
    }
    if (head > 0) {
        result = emit(sink, child, base + first * tree->stride, head, child->bytes);
        first++;
    }
    uint64_t counts[MOST_LEVELS] = {(uint64_t)(end - first)}, strides[MOST_LEVELS] = {(uint64_t)tree->stride};
    int64_t offset = base + first * tree->stride, run;
    int levels = tree->stride > 0 ? chain(child, 1, counts, strides, &offset, &run) : -1;
    if (result == 0 && end > first && levels > 0) {
        result = sink->nested(sink, offset, run, levels, counts, strides);
    } else {
        for (int64_t i = first; result == 0 && i < end; i++) {
            result = emit(sink, child, base + i * tree->stride, 0, child->bytes);
        }
    }
    return result == 0 && tail > 0 ? emit(sink, child, base + end * tree->stride, 0, tail) : (int)result;
}

/* Passes the bytes from position `from` to `to` of a tree to a sink. Returns its first result other than 0. */
int emit(struct sink *sink, const struct tree *tree, int64_t base, int64_t from, int64_t to) {
    int result = 0;
    base += tree->offset;
    if (from >= to) {
        return 0;
    }
    if (tree->kind == RUN) {
        return sink->nested(sink, base + from, to - from, 0, NULL, NULL);
    }
    if (tree->kind == LOOP) {
        return emit_loop(sink, tree, base, from, to);
    }
    for (int64_t i = entry_at(tree, from); result == 0 && i < tree->entries; i++) {
        int64_t start = i > 0 ? tree->ends[i - 1] : 0;
        int64_t low = from > start ? from - start : 0;
        int64_t high = (to < tree->ends[i] ? to : tree->ends[i]) - start;
        if (start >= to) {
            break;
        }
        result = tree->children != NULL ? emit(sink, tree->children[i], base + tree->offsets[i], low, high)
                                        : sink->nested(sink, base + tree->offsets[i] + low, high - low, 0, NULL, NULL);
    }
    return result;
}
