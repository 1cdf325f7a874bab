/* pdgetrf of ScaLAPACK in memory, against the products of its BLAS.
 *
 * Arguments: the order n, and the width of a block. Each process of the job is a column of the grid,
 * so it has whole columns, as a process of outcore has. The first one prints the seconds of pdgetrf, and
 * the sum of the rates at which all processes multiply at the same time, in flops per second, as
 * JSON.
 */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

extern void Cblacs_get(int context, int what, int *value);
extern void Cblacs_gridinit(int *context, const char *order, int rows, int columns);
extern int numroc_(const int *n, const int *nb, const int *at, const int *first, const int *count);
extern void descinit_(int *description, const int *m, const int *n, const int *mb, const int *nb,
                      const int *row, const int *column, const int *context, const int *lead,
                      int *info);
extern void pdgetrf_(const int *m, const int *n, double *a, const int *i, const int *j,
                     const int *description, int *pivots, int *info);
extern void dgemm_(const char *ta, const char *tb, const int *m, const int *n, const int *k,
                   const double *alpha, const double *a, const int *lda, const double *b,
                   const int *ldb, const double *beta, double *c, const int *ldc);

enum { PRODUCTS = 3 };

static double *filled(size_t count) {
    double *memory = malloc(count * sizeof *memory);
    if (memory == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = 0; i < count; i++) memory[i] = drand48() - 0.5;
    return memory;
}

/* The rate of n by n products by this process, while the others multiply too: the best of some. */
static double product_rate(int n) {
    size_t count = (size_t)n * n;
    double *a = filled(count), *b = filled(count), *c = filled(count), one = 1, best = 0;
    for (int i = 0; i < PRODUCTS; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        dgemm_("N", "N", &n, &n, &n, &one, a, &n, b, &n, &one, c, &n);
        double rate = 2.0 * n * n * n / (MPI_Wtime() - start);
        if (rate > best) best = rate;
    }
    free(a), free(b), free(c);
    return best;
}

int main(int argc, char **argv) {
    int rank, size, context, info, zero = 0, one = 1, description[9];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int n = atoi(argv[1]), width = atoi(argv[2]);
    srand48(rank + 1);

    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "R", 1, size);
    int columns = numroc_(&n, &width, &rank, &zero, &size);
    descinit_(description, &n, &n, &width, &width, &zero, &zero, &context, &n, &info);
    double *a = filled((size_t)n * columns);
    int *pivots = malloc((n + width) * sizeof *pivots);

    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    pdgetrf_(&n, &n, a, &one, &one, description, pivots, &info);
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - start;
    free(a), free(pivots);

    double rate = product_rate(n < 4096 ? n : 4096), sum;
    MPI_Reduce(&rate, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"seconds\": %.9g, \"product_flops_s\": %.9g, \"info\": %d}\n", seconds, sum, info);
    MPI_Finalize();
    return info != 0;
}
