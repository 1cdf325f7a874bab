/* Files of FLASH by parallel HDF5. The memory of a variable is a hyperslab that leaves out the guard cells. */

#include "model.h"

#include <stdlib.h>

#include <hdf5.h>

struct output {
    const struct blocks *blocks;
    hid_t file, together;
    int arrays;
    hid_t sets[MOST_ARRAYS], memory_types[MOST_ARRAYS];
};

static hid_t valid(hid_t id, const char *what) {
    if (id < 0) {
        fail(what, "HDF5 failed");
    }
    return id;
}

static void check(herr_t result, const char *what) {
    if (result < 0) {
        fail(what, "HDF5 failed");
    }
}

static hid_t memory_type(enum number type) {
    return type == INTEGER ? H5T_NATIVE_INT32 : type == SINGLE ? H5T_NATIVE_FLOAT : H5T_NATIVE_DOUBLE;
}

static hid_t file_type(enum number type) {
    return type == INTEGER ? H5T_STD_I32LE : type == SINGLE ? H5T_IEEE_F32LE : H5T_IEEE_F64LE;
}

struct output *create_output(const char *path, const struct blocks *blocks, int arrays, const struct array *array) {
    struct output *output = calloc(1, sizeof *output);
    hid_t access = valid(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate");
    if (output == NULL) {
        fail("calloc", "no memory");
    }
    check(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL), "H5Pset_fapl_mpio");
    output->blocks = blocks;
    output->arrays = arrays;
    output->file = valid(H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access), path);
    output->together = valid(H5Pcreate(H5P_DATASET_XFER), "H5Pcreate");
    check(H5Pset_dxpl_mpio(output->together, H5FD_MPIO_COLLECTIVE), "H5Pset_dxpl_mpio");
    H5Pclose(access);
    for (int i = 0; i < arrays; i++) {
        hsize_t extents[1 + MOST_EXTENTS] = {(hsize_t)blocks->all};
        for (int d = 0; d < array[i].extents; d++) {
            extents[1 + d] = (hsize_t)array[i].extent[d];
        }
        hid_t space = valid(H5Screate_simple(1 + array[i].extents, extents, NULL), "H5Screate_simple");
        output->memory_types[i] = memory_type(array[i].type);
        output->sets[i] = valid(H5Dcreate2(output->file, array[i].name, file_type(array[i].type), space, H5P_DEFAULT,
                                           H5P_DEFAULT, H5P_DEFAULT), array[i].name);
        H5Sclose(space);
    }
    return output;
}

/* The numbers in memory: contiguous, or a variable without guard cells. */
static hid_t memory_space(const struct output *output, const hsize_t *counts, int extents, int variable) {
    if (variable < 0) {
        return valid(H5Screate_simple(extents, counts, NULL), "H5Screate_simple");
    }
    hsize_t all[] = {(hsize_t)output->blocks->count, SIDE, SIDE, SIDE, VARIABLES};
    hsize_t start[] = {0, GUARDS, GUARDS, GUARDS, (hsize_t)variable};
    hsize_t count[] = {(hsize_t)output->blocks->count, CELLS, CELLS, CELLS, 1};
    hid_t space = valid(H5Screate_simple(5, all, NULL), "H5Screate_simple");
    check(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), "H5Sselect_hyperslab");
    return space;
}

void write_output(struct output *output, int array, const void *memory, int variable) {
    hsize_t start[1 + MOST_EXTENTS] = {(hsize_t)output->blocks->first}, count[1 + MOST_EXTENTS];
    hid_t space = valid(H5Dget_space(output->sets[array]), "H5Dget_space");
    int extents = H5Sget_simple_extent_dims(space, count, NULL);
    count[0] = (hsize_t)output->blocks->count;
    check(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), "H5Sselect_hyperslab");
    hid_t of_memory = memory_space(output, count, extents, variable);
    check(H5Dwrite(output->sets[array], output->memory_types[array], of_memory, space, output->together, memory), "H5Dwrite");
    H5Sclose(of_memory);
    H5Sclose(space);
}

void close_output(struct output *output) {
    for (int i = 0; i < output->arrays; i++) {
        check(H5Dclose(output->sets[i]), "H5Dclose");
    }
    H5Pclose(output->together);
    check(H5Fclose(output->file), "H5Fclose");
    free(output);
}
