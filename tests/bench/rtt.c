/* The round trip of one cache line between two cores, in ns: the unit in which two-core
 * figures are published, since it moves when a hypervisor moves its cores.
 *
 * Usage: rtt [CORE CORE]. Prints one number: the least of five runs.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 200000, RUNS = 5 };

static struct {
    _Alignas(128) _Atomic uint64_t there;
    _Alignas(128) _Atomic uint64_t back;
} words;

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("rtt: cannot pin a thread");
        exit(1);
    }
}

static void *answer(void *core)
{
    pin(*(int *)core);
    for (uint64_t n = 1; n <= (uint64_t)ROUNDS * RUNS; n++) {
        while (atomic_load_explicit(&words.there, memory_order_acquire) != n)
            ;
        atomic_store_explicit(&words.back, n, memory_order_release);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int cores[2] = { argc > 2 ? atoi(argv[1]) : 0, argc > 2 ? atoi(argv[2]) : 1 };
    pthread_t other;
    if (pthread_create(&other, NULL, answer, &cores[1]) != 0)
        return 1;
    pin(cores[0]);
    double least = 1e30;
    uint64_t n = 0;
    for (int run = 0; run < RUNS; run++) {
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (int round = 0; round < ROUNDS; round++) {
            atomic_store_explicit(&words.there, ++n, memory_order_release);
            while (atomic_load_explicit(&words.back, memory_order_acquire) != n)
                ;
        }
        clock_gettime(CLOCK_MONOTONIC, &end);
        double ns = ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / ROUNDS;
        if (ns < least)
            least = ns;
    }
    pthread_join(other, NULL);
    printf("%.1f\n", least);
    return 0;
}
