/* Datatypes as trees of nested strides, made from the calls that constructed them. Each datatype keeps its tree. */

#include "mpi_io.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

/* The arguments of a constructor in the order of the standard. */
struct call {
    int combiner;
    int64_t *values;
    MPI_Datatype *types;
    int type_count;
};

struct kept_tree {
    struct arena arena;
    struct tree tree;
};

#if MPI_VERSION >= 4
typedef MPI_Count type_count;
#else
typedef int type_count;
#endif

static const struct tree *build(struct arena *arena, MPI_Datatype type);

/* Gets the constructor of a datatype. Returns 0 if it cannot, or has no memory. */
static int get_call(struct arena *arena, MPI_Datatype type, struct call *call) {
    type_count ints = 0, addresses = 0, types = 0, larges = 0;
#if MPI_VERSION >= 4
    if (PMPI_Type_get_envelope_c(type, &ints, &addresses, &larges, &types, &call->combiner) != MPI_SUCCESS) {
        return 0;
    }
#else
    if (PMPI_Type_get_envelope(type, &ints, &addresses, &types, &call->combiner) != MPI_SUCCESS) {
        return 0;
    }
#endif
    call->type_count = (int)types;
    if (call->combiner == MPI_COMBINER_NAMED) {
        return 1;
    }
    int *numbers = arena_alloc(arena, (uint64_t)ints + 1, sizeof(int));
    MPI_Aint *places = arena_alloc(arena, (uint64_t)addresses + 1, sizeof(MPI_Aint));
    MPI_Count *counts = arena_alloc(arena, (uint64_t)larges + 1, sizeof(MPI_Count));
    call->types = arena_alloc(arena, (uint64_t)types + 1, sizeof(MPI_Datatype));
    call->values = arena_alloc(arena, (uint64_t)(ints + addresses + larges) + 1, sizeof(int64_t));
    if (numbers == NULL || places == NULL || counts == NULL || call->types == NULL || call->values == NULL) {
        return 0;
    }
#if MPI_VERSION >= 4
    if (PMPI_Type_get_contents_c(type, ints, addresses, larges, types, numbers, places, counts, call->types) != MPI_SUCCESS) {
        return 0;
    }
#else
    if (PMPI_Type_get_contents(type, ints, addresses, types, numbers, places, call->types) != MPI_SUCCESS) {
        return 0;
    }
#endif
    /* Large counts come after the number of dimensions, and before the other numbers of a constructor. */
    type_count first = 0;
    int64_t *next = call->values;
    if (larges > 0 && call->combiner == MPI_COMBINER_SUBARRAY) {
        first = 1;
    } else if (larges > 0 && call->combiner == MPI_COMBINER_DARRAY) {
        first = 3;
    }
    for (type_count i = 0; i < first; i++) {
        *next++ = numbers[i];
    }
    for (type_count i = 0; i < larges; i++) {
        *next++ = counts[i];
    }
    for (type_count i = first; i < ints; i++) {
        *next++ = numbers[i];
    }
    for (type_count i = 0; i < addresses; i++) {
        *next++ = places[i];
    }
    return 1;
}

int is_named(MPI_Datatype type) {
    int ints, addresses, types, combiner;
    return PMPI_Type_get_envelope(type, &ints, &addresses, &types, &combiner) == MPI_SUCCESS
           && (combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL || combiner == MPI_COMBINER_F90_COMPLEX
               || combiner == MPI_COMBINER_F90_INTEGER);
}

static const struct tree *shifted(struct arena *arena, const struct tree *tree, int64_t by) {
    if (tree == NULL) {
        return NULL;
    }
    struct tree copy = *tree;
    copy.offset += by;
    return kept(arena, copy);
}

static const struct tree *repeated(struct arena *arena, const struct tree *child, int64_t count, int64_t stride) {
    return child == NULL ? NULL : kept(arena, loop_tree(child, count, stride));
}

static const struct tree *build_named(struct arena *arena, MPI_Datatype type) {
    struct pair {
        short value;
        int index;
    };
    MPI_Count bytes;
    if (type == MPI_SHORT_INT) {
        struct builder builder = builder_new(arena, 2);
        struct tree value = run_tree(0, sizeof(short)), index = run_tree(0, sizeof(int));
        builder_add(&builder, 0, &value);
        builder_add(&builder, offsetof(struct pair, index), &index);
        return builder_end(&builder);
    }
    if (PMPI_Type_size_x(type, &bytes) != MPI_SUCCESS || bytes == MPI_UNDEFINED) {
        return NULL;
    }
    return kept(arena, run_tree(0, bytes));
}

/* A list of blocks of one datatype. With `lengths` NULL, each block has `length` elements. */
static const struct tree *build_blocks(struct arena *arena, const struct tree *child, int64_t extent, int64_t count,
                                       const int64_t *lengths, int64_t length, const int64_t *places, int64_t unit) {
    struct builder builder = builder_new(arena, count);
    const struct tree *block = NULL;
    int64_t block_length = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t wanted = lengths != NULL ? lengths[i] : length;
        if (child != NULL && child->kind == RUN && child->bytes == extent) {
            struct tree run = run_tree(child->offset, extent * wanted);
            builder_add(&builder, places[i] * unit, &run);
            continue;
        }
        if (wanted != block_length) {
            block = repeated(arena, child, block_length = wanted, extent);
        }
        builder_add(&builder, places[i] * unit, block);
    }
    return builder_end(&builder);
}

static const struct tree *build_struct(struct arena *arena, const struct call *call) {
    int64_t count = call->values[0];
    struct builder builder = builder_new(arena, count);
    for (int64_t i = 0; i < count; i++) {
        MPI_Count low, extent;
        PMPI_Type_get_extent_x(call->types[i], &low, &extent);
        const struct tree *child = build(arena, call->types[i]);
        builder_add(&builder, call->values[1 + count + i], repeated(arena, child, call->values[1 + i], extent));
    }
    return builder_end(&builder);
}

static const struct tree *build_subarray(struct arena *arena, const struct call *call, const struct tree *child,
                                         int64_t extent) {
    int64_t dims = call->values[0];
    const int64_t *sizes = call->values + 1, *counts = sizes + dims, *starts = counts + dims;
    int is_fortran = starts[dims] == MPI_ORDER_FORTRAN;
    for (int64_t i = 0; i < dims; i++) {
        int64_t dim = is_fortran ? i : dims - 1 - i;
        child = shifted(arena, repeated(arena, child, counts[dim], extent), starts[dim] * extent);
        extent *= sizes[dim];
    }
    return child;
}

/* The elements of one process along a dimension that is distributed in blocks of `block` elements. */
static const struct tree *build_cyclic(struct arena *arena, const struct tree *child, int64_t extent, int64_t size,
                                       int64_t block, int64_t place, int64_t places) {
    int64_t cycle = block * places, start = place * block;
    int64_t whole = size / cycle, rest = size - whole * cycle - start;
    if (rest >= block) {
        whole++;
        rest = 0;
    }
    struct builder builder = builder_new(arena, 2);
    const struct tree *full = repeated(arena, child, block, extent);
    builder_add(&builder, start * extent, repeated(arena, full, whole, cycle * extent));
    if (rest > 0) {
        builder_add(&builder, (start + whole * cycle) * extent, repeated(arena, child, rest, extent));
    }
    return builder_end(&builder);
}

static const struct tree *build_darray(struct arena *arena, const struct call *call, const struct tree *child,
                                       int64_t extent) {
    int64_t rank = call->values[1], dims = call->values[2];
    const int64_t *sizes = call->values + 3, *kinds = sizes + dims, *blocks = kinds + dims, *places = blocks + dims;
    int is_fortran = places[dims] == MPI_ORDER_FORTRAN;
    int64_t *coordinates = arena_alloc(arena, (uint64_t)dims + 1, sizeof(int64_t));
    if (coordinates == NULL) {
        return NULL;
    }
    /* Processes are numbered in C order, whatever the order of the array is. */
    for (int64_t dim = dims - 1; dim >= 0; dim--) {
        coordinates[dim] = rank % places[dim];
        rank /= places[dim];
    }
    for (int64_t i = 0; i < dims; i++) {
        int64_t dim = is_fortran ? i : dims - 1 - i, block = blocks[dim];
        if (kinds[dim] == MPI_DISTRIBUTE_NONE) {
            child = repeated(arena, child, sizes[dim], extent);
        } else {
            if (block == MPI_DISTRIBUTE_DFLT_DARG) {
                block = kinds[dim] == MPI_DISTRIBUTE_BLOCK ? (sizes[dim] + places[dim] - 1) / places[dim] : 1;
            }
            child = build_cyclic(arena, child, extent, sizes[dim], block, coordinates[dim], places[dim]);
        }
        extent *= sizes[dim];
    }
    return child;
}

static const struct tree *build_derived(struct arena *arena, const struct call *call) {
    const int64_t *values = call->values;
    int64_t count = values[0];
    MPI_Count low, extent;
    if (call->combiner == MPI_COMBINER_STRUCT) {
        return build_struct(arena, call);
    }
    const struct tree *child = build(arena, call->types[0]);
    PMPI_Type_get_extent_x(call->types[0], &low, &extent);
    switch (call->combiner) {
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED: return child;
    case MPI_COMBINER_CONTIGUOUS: return repeated(arena, child, count, extent);
    case MPI_COMBINER_VECTOR:
        return repeated(arena, repeated(arena, child, values[1], extent), count, values[2] * extent);
    case MPI_COMBINER_HVECTOR: return repeated(arena, repeated(arena, child, values[1], extent), count, values[2]);
    case MPI_COMBINER_INDEXED:
        return build_blocks(arena, child, extent, count, values + 1, 0, values + 1 + count, extent);
    case MPI_COMBINER_HINDEXED: return build_blocks(arena, child, extent, count, values + 1, 0, values + 1 + count, 1);
    case MPI_COMBINER_INDEXED_BLOCK: return build_blocks(arena, child, extent, count, NULL, values[1], values + 2, extent);
    case MPI_COMBINER_HINDEXED_BLOCK: return build_blocks(arena, child, extent, count, NULL, values[1], values + 2, 1);
    case MPI_COMBINER_SUBARRAY: return build_subarray(arena, call, child, extent);
    case MPI_COMBINER_DARRAY: return build_darray(arena, call, child, extent);
    default: return NULL;
    }
}

/* Returns the tree of a datatype, or NULL if it has none or memory is short. */
static const struct tree *build(struct arena *arena, MPI_Datatype type) {
    struct call call;
    if (is_named(type)) {
        return build_named(arena, type);
    }
    if (!get_call(arena, type, &call)) {
        return NULL;
    }
    const struct tree *made = build_derived(arena, &call);
    for (int i = 0; i < call.type_count; i++) {
        if (!is_named(call.types[i])) {
            PMPI_Type_free(&call.types[i]);
        }
    }
    return made;
}

static int forget(MPI_Datatype type, int key, void *value, void *extra) {
    (void)type, (void)key, (void)extra;
    arena_free(&((struct kept_tree *)value)->arena);
    free(value);
    return MPI_SUCCESS;
}

static int key = MPI_KEYVAL_INVALID;

static void make_key(void) {
    PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, forget, &key, NULL);
}

/* Refuses a datatype that the program has not committed: MPI has no other call for this than one that would use the datatype.
 * The communicator returns errors. */
int check_type(MPI_Comm comm, MPI_Datatype type) {
    char none;
    int place = 0;
    if (type == MPI_DATATYPE_NULL) {
        return failed(MPI_ERR_TYPE, "need a datatype, have MPI_DATATYPE_NULL; pass one");
    }
    if (!is_named(type) && PMPI_Pack(&none, 0, type, &none, 1, &place, comm) != MPI_SUCCESS) {
        return failed(MPI_ERR_TYPE, "need a committed datatype, have another one; call MPI_Type_commit before");
    }
    return 0;
}

/* Gets the tree of a committed datatype. It is valid as long as the datatype. */
int tree_of(MPI_Comm comm, MPI_Datatype type, const struct tree **tree) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    void *found = NULL;
    int is_found = 0;
    pthread_once(&once, make_key);
    if (type == MPI_DATATYPE_NULL || PMPI_Type_get_attr(type, key, &found, &is_found) != MPI_SUCCESS) {
        return failed(MPI_ERR_TYPE, "need a datatype, have none that is valid; commit and pass one");
    }
    struct kept_tree *kept_one = found;
    if (!is_found) {
        int class = check_type(comm, type);
        if (class != 0) {
            return class;
        }
        if ((kept_one = calloc(1, sizeof *kept_one)) == NULL) {
            return failed(MPI_ERR_NO_MEM, "need memory for a datatype; use fewer or smaller datatypes");
        }
        const struct tree *made = build(&kept_one->arena, type);
        if (made == NULL) {
            arena_free(&kept_one->arena);
            free(kept_one);
            return failed(MPI_ERR_TYPE, "need a datatype of the standard's constructors, have another one; make it by "
                                        "MPI_Type_create_struct");
        }
        kept_one->tree = *made;
        PMPI_Type_set_attr(type, key, kept_one);
    }
    *tree = &kept_one->tree;
    return 0;
}
