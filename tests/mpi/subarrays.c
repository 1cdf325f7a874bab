/* A program that knows nothing of pools: all processes write an array of N x N x N numbers in blocks, and read them.
 *
 *     subarrays FILE N
 *
 * The memory of a block has guard cells on each side. It prints "well", or the fault.
 */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define GUARD 2

static void check(int result, const char *what) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (result != MPI_SUCCESS) {
        MPI_Error_string(result, text, &length);
        fprintf(stderr, "%s: %s\n", what, text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv) {
    int rank, size, mesh[3] = {0}, sizes[3], counts[3], starts[3], place[3], padded[3], inside[3] = {GUARD, GUARD, GUARD};
    MPI_Datatype view, memory;
    MPI_File file;
    MPI_Status status;
    MPI_Offset length;
    MPI_Count moved;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3 || MPI_Dims_create(size, 3, mesh) != MPI_SUCCESS) {
        return 2;
    }
    int n = atoi(argv[2]);
    place[0] = rank / (mesh[1] * mesh[2]);
    place[1] = rank / mesh[2] % mesh[1];
    place[2] = rank % mesh[2];
    for (int i = 0; i < 3; i++) {
        sizes[i] = n;
        starts[i] = place[i] * n / mesh[i];
        counts[i] = (place[i] + 1) * n / mesh[i] - starts[i];
        padded[i] = counts[i] + 2 * GUARD;
    }
    MPI_Type_create_subarray(3, sizes, counts, starts, MPI_ORDER_C, MPI_DOUBLE, &view);
    MPI_Type_create_subarray(3, padded, counts, inside, MPI_ORDER_C, MPI_DOUBLE, &memory);
    MPI_Type_commit(&view);
    MPI_Type_commit(&memory);
    size_t cells = (size_t)padded[0] * (size_t)padded[1] * (size_t)padded[2];
    double *block = calloc(cells, sizeof *block), *back = calloc(cells, sizeof *back);
    for (size_t i = 0; i < cells; i++) {
        block[i] = (double)i + 1e6 * rank;
    }
    check(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    check(MPI_File_set_view(file, 0, MPI_DOUBLE, view, "native", MPI_INFO_NULL), "set_view");
    check(MPI_File_write_all(file, block, 1, memory, &status), "write_all");
    MPI_Get_elements_x(&status, MPI_DOUBLE, &moved);
    if (moved != (MPI_Count)counts[0] * counts[1] * counts[2]) {
        printf("rank %d wrote %lld numbers\n", rank, (long long)moved);
    }
    check(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    check(MPI_File_get_size(file, &length), "get_size");
    if (length != (MPI_Offset)n * n * n * (MPI_Offset)sizeof(double)) {
        printf("rank %d finds %lld bytes\n", rank, (long long)length);
    }
    check(MPI_File_seek(file, 0, MPI_SEEK_SET), "seek");
    int kind = MPI_SUCCESS;
    MPI_Error_class(MPI_File_read(file, back, -1, memory, &status), &kind);
    if (kind != MPI_ERR_COUNT) {
        printf("a negative count has the class %d\n", kind);
    }
    check(MPI_File_read_all(file, back, 1, memory, &status), "read_all");
    for (size_t i = 0; i < cells; i++) {
        size_t x = i / (size_t)(padded[1] * padded[2]), y = i / (size_t)padded[2] % (size_t)padded[1], z = i % (size_t)padded[2];
        int is_inside = x >= GUARD && x < (size_t)(GUARD + counts[0]) && y >= GUARD && y < (size_t)(GUARD + counts[1])
                        && z >= GUARD && z < (size_t)(GUARD + counts[2]);
        if (back[i] != (is_inside ? block[i] : 0)) {
            printf("rank %d: cell %zu is %g\n", rank, i, back[i]);
            break;
        }
    }
    check(MPI_File_close(&file), "close");
    MPI_Type_free(&view);
    MPI_Type_free(&memory);
    free(block);
    free(back);
    MPI_Finalize();
    printf("well\n");
    return 0;
}
