/* Files of FLASH by PnetCDF. The memory of a variable is a subarray that leaves out the guard cells. */

#include "model.h"

#include <stdio.h>
#include <stdlib.h>

#include <pnetcdf.h>

struct output {
    const struct blocks *blocks;
    int file, variables[MOST_ARRAYS];
    struct array array[MOST_ARRAYS];
};

static void check(int result, const char *what) {
    if (result != NC_NOERR) {
        fail(what, ncmpi_strerror(result));
    }
}

/* Returns the dimension of this length, which it makes where it is missing. */
static int dimension(int file, int64_t length) {
    char name[32];
    int id;
    snprintf(name, sizeof name, "of%lld", (long long)length);
    if (ncmpi_inq_dimid(file, name, &id) != NC_NOERR) {
        check(ncmpi_def_dim(file, name, length, &id), name);
    }
    return id;
}

struct output *create_output(const char *path, const struct blocks *blocks, int arrays, const struct array *array) {
    static const nc_type types[] = {[INTEGER] = NC_INT, [SINGLE] = NC_FLOAT, [DOUBLE] = NC_DOUBLE};
    struct output *output = calloc(1, sizeof *output);
    int dimensions[1 + MOST_EXTENTS];
    if (output == NULL) {
        fail("calloc", "no memory");
    }
    output->blocks = blocks;
    check(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_OFFSET, MPI_INFO_NULL, &output->file), path);
    check(ncmpi_def_dim(output->file, "blocks", blocks->all, &dimensions[0]), "blocks");
    for (int i = 0; i < arrays; i++) {
        for (int d = 0; d < array[i].extents; d++) {
            dimensions[1 + d] = dimension(output->file, array[i].extent[d]);
        }
        output->array[i] = array[i];
        check(ncmpi_def_var(output->file, array[i].name, types[array[i].type], 1 + array[i].extents, dimensions,
                            &output->variables[i]), array[i].name);
    }
    check(ncmpi_enddef(output->file), "ncmpi_enddef");
    return output;
}

static MPI_Datatype without_guards(const struct blocks *blocks, int variable) {
    int all[] = {(int)blocks->count, SIDE, SIDE, SIDE, VARIABLES};
    int count[] = {(int)blocks->count, CELLS, CELLS, CELLS, 1};
    int start[] = {0, GUARDS, GUARDS, GUARDS, variable};
    MPI_Datatype type;
    MPI_Type_create_subarray(5, all, count, start, MPI_ORDER_C, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    return type;
}

void write_output(struct output *output, int number, const void *memory, int variable) {
    const struct array *array = &output->array[number];
    MPI_Datatype types[] = {[INTEGER] = MPI_INT, [SINGLE] = MPI_FLOAT, [DOUBLE] = MPI_DOUBLE};
    MPI_Offset start[1 + MOST_EXTENTS] = {output->blocks->first}, count[1 + MOST_EXTENTS] = {output->blocks->count};
    MPI_Offset elements = output->blocks->count;
    for (int d = 0; d < array->extents; d++) {
        count[1 + d] = array->extent[d];
        elements *= array->extent[d];
    }
    MPI_Datatype type = types[array->type];
    if (variable >= 0) {
        type = without_guards(output->blocks, variable);
        elements = 1;
    }
    check(ncmpi_put_vara_all(output->file, output->variables[number], start, count, memory, elements, type), array->name);
    if (variable >= 0) {
        MPI_Type_free(&type);
    }
}

void close_output(struct output *output) {
    check(ncmpi_close(output->file), "ncmpi_close");
    free(output);
}
