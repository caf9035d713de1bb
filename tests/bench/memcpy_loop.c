/* One memcpy of libc for each run, between permuted pages: what a careful engineer would write by hand. */
#include <stdint.h>
#include <string.h>

void copy_runs(char *dst, char *const *src, const int64_t *dst_ids, const int64_t *src_ids, int64_t pages,
               int64_t runs, int64_t nbytes) {
    for (int64_t k = 0; k < pages; k++)
        for (int64_t rank = 0; rank < 2; rank++) {
            char *to = dst + dst_ids[k] * 2 * runs * nbytes + rank * nbytes;
            const char *from = src[rank] + src_ids[k] * runs * nbytes;
            for (int64_t i = 0; i < runs; i++, to += 2 * nbytes, from += nbytes) memcpy(to, from, nbytes);
        }
}
