/* The state of FLASH as its I/O benchmark has it: blocks of cells with guard cells, and a tree of the blocks.
 *
 * Facts: the benchmark's README of 2001 (M. Zingale), and Ross et al. 2001. A process has 80 + (rank mod 3) blocks, times a
 * factor. All variables of a cell lie together in memory, as in Fortran's unk(variable, x, y, z, block). A file has one array
 * for each variable.
 */

#ifndef FLASH_MODEL_H
#define FLASH_MODEL_H

#include <stdint.h>

#include <mpi.h>

enum { CELLS = 8, GUARDS = 4, SIDE = CELLS + 2 * GUARDS, VARIABLES = 24, PLOTTED = 4 };
enum { BLOCKS = 80, MOST_ARRAYS = 32, MOST_EXTENTS = 4 };

enum number { INTEGER, SINGLE, DOUBLE };

/* An array of a file. Its first dimension is that of the blocks of all processes. */
struct array {
    char name[16];
    enum number type;
    int extents; /* beyond that of the blocks */
    int64_t extent[MOST_EXTENTS];
};

/* Blocks of this process: `count` of `all`, beginning with `first`. */
struct blocks {
    int64_t first, count, all;
};

/* ---- hdf5.c or pnetcdf.c */

struct output;

struct output *create_output(const char *path, const struct blocks *blocks, int arrays, const struct array *array);

/* Writes this process's blocks of an array, together with all processes: from contiguous memory, or with a variable from 0 on
 * from the cells without guard cells of that variable in memory of the model. */
void write_output(struct output *output, int array, const void *memory, int variable);
void close_output(struct output *output);

_Noreturn void fail(const char *what, const char *why);

#endif
