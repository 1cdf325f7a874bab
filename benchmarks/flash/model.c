/* A program that writes files of FLASH's I/O benchmark, and measures it: PATH FACTOR ROUNDS.
 *
 * Process 0 prints a line of JSON for each written file: its content, the way of its data in memory, the seconds until it is
 * durable, and the seconds in which the program itself packed. Files get the names of their contents after PATH.
 */

#include "model.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum content { CHECKPOINT, CENTRED, CORNERS };

static const char *const contents[] = {"checkpoint", "centred", "corners"};

struct state {
    int rank;
    struct blocks blocks;
    double *cells;  /* blocks x SIDE x SIDE x SIDE x VARIABLES */
    void *packed;   /* one array of a file */
    double packing; /* seconds of this process */
};

_Noreturn void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static void *allocate(int64_t count, size_t bytes) {
    void *memory = calloc((size_t)count, bytes);
    if (memory == NULL) {
        fail("calloc", "no memory");
    }
    return memory;
}

/* A value that no other cell or variable has. */
static double value(int64_t block, int variable, int z, int y, int x) {
    return (double)block + (variable * SIDE * SIDE * SIDE + (z * SIDE + y) * SIDE + x) / 131072.0;
}

static struct state make_state(int64_t factor) {
    struct state state = {.packing = 0};
    int size;
    MPI_Comm_rank(MPI_COMM_WORLD, &state.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int rank = 0; rank < size; rank++) {
        int64_t count = factor * (BLOCKS + rank % 3);
        if (rank == state.rank) {
            state.blocks.first = state.blocks.all;
            state.blocks.count = count;
        }
        state.blocks.all += count;
    }
    int64_t cells = state.blocks.count * SIDE * SIDE * SIDE;
    state.cells = allocate(cells * VARIABLES, sizeof(double));
    /* The largest array that is packed has corners of cells in single, or cells in double precision. */
    state.packed = allocate(state.blocks.count * CELLS * CELLS * CELLS, sizeof(double));
    /* The outer guard cells stay 0: nothing reads them. */
    int first = GUARDS - 1, end = GUARDS + CELLS + 1;
    for (int64_t block = 0; block < state.blocks.count; block++) {
        for (int z = first; z < end; z++) {
            for (int y = first; y < end; y++) {
                double *next = state.cells + (((block * SIDE + z) * SIDE + y) * SIDE + first) * VARIABLES;
                for (int x = first; x < end; x++) {
                    for (int variable = 0; variable < VARIABLES; variable++) {
                        *next++ = value(state.blocks.first + block, variable, z, y, x);
                    }
                }
            }
        }
    }
    return state;
}

/* The arrays of the tree, before those of the variables in each file. */
enum { REFINEMENT, KIND, RELATIVES, COORDINATES, SIZES, BOXES, TREE_ARRAYS };

static int describe(enum content content, struct array *arrays) {
    static const struct {
        const char *name;
        int is_integer, extents;
        int64_t extent[2];
    } tree[TREE_ARRAYS] = {
        {"refinement", 1, 0, {0}},   {"kind", 1, 0, {0}},  {"relatives", 1, 1, {15}},
        {"coordinates", 0, 1, {3}},  {"sizes", 0, 1, {3}}, {"boxes", 0, 2, {3, 2}},
    };
    enum number real = content == CHECKPOINT ? DOUBLE : SINGLE;
    int side = content == CORNERS ? CELLS + 1 : CELLS, variables = content == CHECKPOINT ? VARIABLES : PLOTTED;
    for (int i = 0; i < TREE_ARRAYS; i++) {
        struct array *array = &arrays[i];
        *array = (struct array){.type = tree[i].is_integer ? INTEGER : real, .extents = tree[i].extents};
        strcpy(array->name, tree[i].name);
        memcpy(array->extent, tree[i].extent, sizeof tree[i].extent);
    }
    for (int i = 0; i < variables; i++) {
        struct array *array = &arrays[TREE_ARRAYS + i];
        *array = (struct array){.type = real, .extents = 3, .extent = {side, side, side}};
        snprintf(array->name, sizeof array->name, "variable%02d", i);
    }
    return TREE_ARRAYS + variables;
}

/* A number of the tree of blocks. `i` counts the numbers of a block in an array. */
static double tree_number(int array, int64_t block, int64_t i) {
    int refinement = 1 + (int)(block % 5);
    double size = ldexp(1, -refinement);
    switch (array) {
    case REFINEMENT: return refinement;
    case KIND: return 1 + (double)(block % 3);
    case RELATIVES: return (double)(15 * block + i);
    case COORDINATES: return (double)block + (double)i / 4;
    case SIZES: return size;
    default: return (double)block + (double)(i / 2) / 4 + (i % 2 == 0 ? -size : size) / 2;
    }
}

static void put(void *memory, enum number type, int64_t place, double number) {
    if (type == INTEGER) {
        ((int32_t *)memory)[place] = (int32_t)number;
    } else if (type == SINGLE) {
        ((float *)memory)[place] = (float)number;
    } else {
        ((double *)memory)[place] = number;
    }
}

static void make_tree(const struct state *state, int number, const struct array *array) {
    int64_t each = 1;
    for (int i = 0; i < array->extents; i++) {
        each *= array->extent[i];
    }
    for (int64_t i = 0; i < state->blocks.count * each; i++) {
        put(state->packed, array->type, i, tree_number(number, state->blocks.first + i / each, i % each));
    }
}

/* Strides of the cells in memory, in numbers. */
enum { X = VARIABLES, Y = SIDE * X, Z = SIDE * Y, BLOCK = SIDE * Z };

/* The mean of the 8 cells around a corner. */
static double corner(const double *cell) {
    double sum = 0;
    for (int i = 0; i < 8; i++) {
        sum += *(cell - (i & 1) * X - (i >> 1 & 1) * Y - (i >> 2) * Z);
    }
    return sum / 8;
}

/* Copies a variable without guard cells into contiguous memory. */
static void pack(const struct state *state, enum content content, int variable) {
    int side = content == CORNERS ? CELLS + 1 : CELLS;
    double *as_double = state->packed;
    float *as_single = state->packed;
    for (int64_t block = 0; block < state->blocks.count; block++) {
        const double *first = state->cells + block * BLOCK + GUARDS * (X + Y + Z) + variable;
        for (int z = 0; z < side; z++) {
            for (int y = 0; y < side; y++) {
                const double *row = first + z * Z + y * Y;
                for (int x = 0; x < side; x++) {
                    if (content == CHECKPOINT) {
                        *as_double++ = row[x * X];
                    } else {
                        *as_single++ = (float)(content == CENTRED ? row[x * X] : corner(row + x * X));
                    }
                }
            }
        }
    }
}

/* Makes a plain file durable. MPI has done so for a file of a pool, whose address is no path. */
static void sync_plain(const char *path) {
    int file = open(path, O_RDONLY);
    if (file >= 0) {
        fsync(file);
        close(file);
    }
}

static void write_file(struct state *state, enum content content, int is_packed, const char *path) {
    struct array arrays[MOST_ARRAYS];
    int count = describe(content, arrays);
    struct output *output = create_output(path, &state->blocks, count, arrays);
    for (int i = 0; i < TREE_ARRAYS; i++) {
        make_tree(state, i, &arrays[i]);
        write_output(output, i, state->packed, -1);
    }
    for (int i = TREE_ARRAYS; i < count; i++) {
        int variable = i - TREE_ARRAYS;
        if (is_packed) {
            double begin = MPI_Wtime();
            pack(state, content, variable);
            state->packing += MPI_Wtime() - begin;
            write_output(output, i, state->packed, -1);
        } else {
            write_output(output, i, state->cells, variable);
        }
    }
    close_output(output);
    sync_plain(path);
}

static void measure(struct state *state, enum content content, int is_packed, const char *above) {
    char path[4096];
    double times[2], most[2];
    snprintf(path, sizeof path, "%s-%s%s", above, contents[content], is_packed ? "-packed" : "");
    if (state->rank == 0) {
        remove(path);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    state->packing = 0;
    double begin = MPI_Wtime();
    write_file(state, content, is_packed, path);
    times[0] = MPI_Wtime() - begin;
    times[1] = state->packing;
    MPI_Reduce(times, most, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (state->rank == 0) {
        printf("{\"content\": \"%s\", \"is_packed\": %s, \"seconds\": %.6f, \"packing\": %.6f}\n", contents[content],
               is_packed ? "true" : "false", most[0], most[1]);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 4) {
        fail(argv[0], "need PATH FACTOR ROUNDS");
    }
    struct state state = make_state(atoll(argv[2]));
    for (int round = 0; round < atoi(argv[3]); round++) {
        measure(&state, CHECKPOINT, 0, argv[1]);
        measure(&state, CHECKPOINT, 1, argv[1]);
    }
    /* Plotfiles have other numbers than the memory, so the program packs them. */
    measure(&state, CENTRED, 1, argv[1]);
    measure(&state, CORNERS, 1, argv[1]);
    free(state.cells);
    free(state.packed);
    MPI_Finalize();
    return 0;
}
