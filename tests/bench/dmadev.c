/* The opponent of the copy engine: DPDK's dmadev with its software driver dma_skeleton,
 * whose worker thread does the copies. Prints one JSON array, a cell for each size and
 * batch: {"bytes", "batch", "depth", "ns_per_op"}; depth 1 is one copy at a time.
 *
 * Build and run: tests/bench/run. EAL arguments:
 *   -m 512 --no-huge --no-pci -l 0 --vdev=dma_skeleton,lcore=1
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_malloc.h>

enum { DESCRIPTORS = 1024, IN_FLIGHT = 900, AREA = 8 << 20, POLL = 256 };

static int16_t device;
static char *source, *destination;

static void fail(const char *what, int status)
{
    fprintf(stderr, "dmadev: %s failed: %d\n", what, status);
    exit(1);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void check(bool has_error)
{
    if (has_error)
        fail("a copy", -1);
}

/* The offset of copy number n: through the area and again from its beginning. */
static size_t offset(uint64_t n, uint32_t bytes)
{
    return (size_t)(n % (AREA / bytes)) * bytes;
}

/* ns for one copy when many are in flight and each batch has one submit. */
static double throughput(uint32_t bytes, uint32_t batch, uint64_t operations)
{
    uint64_t posted = 0, done = 0;
    operations = (operations + batch - 1) / batch * batch;
    double start = now_ns();
    while (done < operations) {
        bool error = false;
        while (posted < operations && posted - done + batch <= IN_FLIGHT) {
            for (uint32_t i = 0; i < batch; i++, posted++) {
                int status = rte_dma_copy(device, 0, (rte_iova_t)(source + offset(posted, bytes)),
                                          (rte_iova_t)(destination + offset(posted, bytes)), bytes, 0);
                if (status < 0)
                    fail("rte_dma_copy", status);
            }
            int status = rte_dma_submit(device, 0);
            if (status < 0)
                fail("rte_dma_submit", status);
            done += rte_dma_completed(device, 0, POLL, NULL, &error);
            check(error);
        }
        done += rte_dma_completed(device, 0, POLL, NULL, &error);
        check(error);
    }
    return (now_ns() - start) / operations;
}

/* ns from the submit of one copy to its completion, nothing else in flight. */
static double round_trip(uint32_t bytes, uint64_t operations)
{
    double start = now_ns();
    for (uint64_t n = 0; n < operations; n++) {
        bool error = false;
        int status = rte_dma_copy(device, 0, (rte_iova_t)(source + offset(n, bytes)),
                                  (rte_iova_t)(destination + offset(n, bytes)), bytes, RTE_DMA_OP_FLAG_SUBMIT);
        if (status < 0)
            fail("rte_dma_copy", status);
        while (rte_dma_completed(device, 0, 1, NULL, &error) == 0)
            check(error);
        check(error);
    }
    return (now_ns() - start) / operations;
}

int main(int argc, char **argv)
{
    int status = rte_eal_init(argc, argv);
    if (status < 0)
        fail("rte_eal_init", status);
    device = rte_dma_next_dev(0);
    if (device < 0)
        fail("finding a DMA device", device);
    struct rte_dma_conf conf = { .nb_vchans = 1 };
    struct rte_dma_vchan_conf channel = { .direction = RTE_DMA_DIR_MEM_TO_MEM, .nb_desc = DESCRIPTORS };
    if ((status = rte_dma_configure(device, &conf)) < 0 || (status = rte_dma_vchan_setup(device, 0, &channel)) < 0 ||
        (status = rte_dma_start(device)) < 0)
        fail("starting the device", status);
    source = rte_malloc(NULL, AREA, 4096);
    destination = rte_malloc(NULL, AREA, 4096);
    if (source == NULL || destination == NULL)
        fail("rte_malloc", -1);
    for (size_t i = 0; i < AREA; i++)
        source[i] = (char)(i * 2654435761u >> 13);
    memset(destination, 0, AREA);

    static const uint32_t sizes[] = { 64, 4096, 65536 }, batches[] = { 1, 32, 128 };
    printf("[\n");
    for (size_t s = 0; s < RTE_DIM(sizes); s++) {
        uint64_t operations = sizes[s] == 65536 ? 40000 : 1000000;
        for (size_t b = 0; b < RTE_DIM(batches); b++) {
            throughput(sizes[s], batches[b], operations / 20);
            printf("  {\"bytes\": %u, \"batch\": %u, \"depth\": %d, \"ns_per_op\": %.2f},\n", sizes[s], batches[b],
                   IN_FLIGHT, throughput(sizes[s], batches[b], operations));
        }
        if (memcmp(source, destination, AREA) != 0)
            fail("comparing the areas", -1);
    }
    for (size_t s = 0; s < RTE_DIM(sizes); s++) {
        uint64_t operations = sizes[s] == 65536 ? 10000 : 100000;
        round_trip(sizes[s], operations / 10);
        printf("  {\"bytes\": %u, \"batch\": 1, \"depth\": 1, \"ns_per_op\": %.2f}%s\n", sizes[s],
               round_trip(sizes[s], operations), s + 1 < RTE_DIM(sizes) ? "," : "\n]");
    }
    fflush(stdout);
    rte_dma_stop(device);
    rte_eal_cleanup();
    return 0;
}
