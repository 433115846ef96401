/* Random numbers: the words of Philox4x64-10 (Salmon, Moraes, Dror and Shaw, 2011), and distributions of them, as
 * defined by the contract. */
#define UNROLLED
#include "runtime/kernels.h"

/* Words generated at a time. */
#define WORDS 512

INLINE uint64_t high_product(uint64_t x, uint64_t y, uint64_t *low) {
#ifdef __SIZEOF_INT128__
    const unsigned __int128 product = (unsigned __int128)x * y;
    *low = (uint64_t)product;
    return (uint64_t)(product >> 64);
#else
    const uint64_t x0 = (uint32_t)x, x1 = x >> 32, y0 = (uint32_t)y, y1 = y >> 32;
    const uint64_t right = x1 * y0 + (x0 * y0 >> 32), left = x0 * y1 + (uint32_t)right;
    *low = x * y;
    return x1 * y1 + (right >> 32) + (left >> 32);
#endif
}

/* The eight words of a block, the low half of each number first. The processor overlaps blocks, as long as their rounds
 * are unrolled. */
INLINE void block_of(uint64_t counter, uint64_t key, uint64_t other, uint32_t *restrict words) {
    uint64_t a = counter, b = 0, c = 0, d = 0;
    for (int i = 0; i < 10; i++, key += 0x9E3779B97F4A7C15u, other += 0xBB67AE8584CAA73Bu) {
        uint64_t first, second;
        const uint64_t up = high_product(0xD2E7470EE14C6C93u, a, &first);
        const uint64_t down = high_product(0xCA5A826395121157u, c, &second);
        a = down ^ b ^ key, b = second, c = up ^ d ^ other, d = first;
    }
    const uint64_t numbers[] = {a, b, c, d};
    for (int i = 0; i < 4; i++) words[2 * i] = (uint32_t)numbers[i], words[2 * i + 1] = (uint32_t)(numbers[i] >> 32);
}

/* Up to WORDS words from offset on; returns where they start in room. */
static const uint32_t *words_of(const uint64_t *key, uint64_t offset, int64_t count, uint32_t *room) {
    const int64_t skipped = (int64_t)(offset % 8);
    for (int64_t i = 0; i < skipped + count; i += 8)
        block_of(offset / 8 + 1 + (uint64_t)(i / 8), key[0], key[1], room + i);
    return room + skipped;
}

/* The words from offset on, of rows that are `length` words long: some columns, as int64 (columns, number). Only the
 * blocks that hold them are computed. */
KERNEL(random_columns, int64_t *restrict out, const uint64_t *restrict key, uint64_t offset,
       const int64_t *restrict rows, int64_t length, int64_t columns, int64_t number) {
    for (int64_t row = 0; row < number; row++) {
        const uint64_t first = offset + (uint64_t)(rows[row] * length);
        const int64_t skipped = (int64_t)(first % 8);
        for (int64_t start = -skipped; start < columns; start += 8) {
            uint32_t words[8];
            block_of(first / 8 + 1 + (uint64_t)((start + skipped) / 8), key[0], key[1], words);
            for (int64_t i = start < 0 ? -start : 0; i < 8 && start + i < columns; i++)
                out[(start + i) * number + row] = words[i];
        }
    }
}

/* Fills out in packs of WORDS; w are the words of a pack, n its number of elements, of `each` words each. */
#define DRAW(name, type, each, ...)                                                                                    \
    KERNEL(name, type *restrict out, const uint64_t *restrict key, uint64_t offset, int64_t option,                    \
           int64_t count) {                                                                                            \
        enum { ELEMENTS = WORDS / each };                                                                              \
        uint32_t room[WORDS + 16];                                                                                     \
        (void)option;                                                                                                  \
        for (; count > 0; out += ELEMENTS, offset += WORDS, count -= ELEMENTS) {                                       \
            const int64_t n = count < ELEMENTS ? count : ELEMENTS;                                                     \
            const uint32_t *w = words_of(key, offset, each * (n + n % 2), room);                                       \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

DRAW(random_words, uint32_t, 1, memcpy(out, w, sizeof *out * (size_t)n);)
DRAW(random_below, unsigned char, 1, LOOP for (int64_t i = 0; i < n; i++) out[i] = (int64_t)w[i] < option;)
DRAW(random_bits, int64_t, 1, LOOP for (int64_t i = 0; i < n; i++) out[i] = w[i];)
DRAW(random_uniform, float, 1, LOOP for (int64_t i = 0; i < n; i++) out[i] = (float)(int32_t)(w[i] >> 8) * 0x1p-24f;)
DRAW(random_uniform_double, double, 2,
     LOOP for (int64_t i = 0; i < n; i++) out[i] = (double)(int64_t)(((uint64_t)w[2 * i + 1] << 32 | w[2 * i]) >> 11) * 0x1p-53;)

/* The 64 highest bits of the product of two words, as 64 bits, and option. */
INLINE int64_t share_of(uint64_t low, uint64_t high, uint64_t option) {
    const uint64_t lower = option & 0xffffffffu, upper = option >> 32;
    const uint64_t right = high * lower + (low * lower >> 32), left = low * upper + (right & 0xffffffffu);
    return (int64_t)(high * upper + (right >> 32) + (left >> 32));
}
DRAW(random_integers, int64_t, 2,
     LOOP for (int64_t i = 0; i < n; i++) out[i] = share_of(w[2 * i], w[2 * i + 1], (uint64_t)option);)

/* log(u) for a normal (not subnormal) u. */
INLINE float log_of_normal(float u) {
    const int32_t bits = to_bits(u), half = to_bits(0.707106781f);
    const int32_t exponent = (bits - half) >> 23;
    const float z = from_bits(bits - (int32_t)((uint32_t)exponent << 23)) - 1.0f, e = (float)exponent, square = z * z;
    return (log_terms(z) * square - 2.12194440e-4f * e - 0.5f * square + z) + 0.693359375f * e;
}

/* Pairs of normal variates by Box-Muller: r cos t and r sin t. The angle, below 2 pi, is reduced to -pi / 4 to pi / 4
 * by multiples of pi / 2 in three parts; sine and cosine are Cephes' polynomials. */
INLINE void pair_of(uint32_t first, uint32_t second, float *even, float *odd) {
    const float u = (float)((double)first + 1.0) * 0x1p-32f, t = (float)second * 1.4629180792671596e-9f;
    const float radius = sqrtf(-2.0f * log_of_normal(u));
    const int32_t quarter = (int32_t)(t * 0.636619772f + 0.5f);
    const float q = (float)quarter;
    const float x = ((t - q * 1.5703125f) - q * 4.837512969970703125e-4f) - q * 7.54978995489188216e-8f, z = x * x;
    const float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
    const float cosine = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * (z * z) -
                         0.5f * z + 1.0f;
    const float s = quarter & 1 ? cosine : sine, c = quarter & 1 ? sine : cosine;
    *even = radius * ((quarter + 1) & 2 ? -c : c);
    *odd = radius * (quarter & 2 ? -s : s);
}

DRAW(random_normal, float, 1, {
     float even[WORDS / 2];
     float odd[WORDS / 2];
     LOOP for (int64_t i = 0; i < (n + 1) / 2; i++) pair_of(w[2 * i], w[2 * i + 1], &even[i], &odd[i]);
     for (int64_t i = 0; i < n; i++) out[i] = i % 2 ? odd[i / 2] : even[i / 2];
     })

typedef struct {
    uint64_t key;
    int64_t index;
} Keyed;

#define NEAR 10 /* bits of the keys that select a place within a part, which stays in the cache */

/* The stable order of count keys, each the highest 63 bits of two words, the first the lower half. For random keys it
 * suffices to count by their highest bits, enough for more places than keys, and to exchange a few neighbours. The
 * first of these bits select a part; parts begin at starts (one for each and one more). keyed is scratch. */
KERNEL(order_of_random, int64_t *restrict out, const uint32_t *restrict words, uint32_t *restrict starts,
       Keyed *restrict keyed, int64_t count, int bits) {
    const int near = bits < NEAR ? bits : NEAR, far = bits - near;
    memset(starts, 0, (((size_t)1 << far) + 1) * sizeof *starts);
    for (int64_t i = 0; i < count; i++) starts[(words[2 * i + 1] >> (31 - far) >> 1) + 1]++;
    for (int64_t i = 1; i < (int64_t)1 << far; i++) starts[i] += starts[i - 1];
    for (int64_t i = 0; i < count; i++) {
        const uint32_t low = words[2 * i], high = words[2 * i + 1];
        keyed[starts[high >> (31 - far) >> 1]++] = (Keyed){((uint64_t)high << 32 | low) >> 1, i};
    }
    for (int64_t part = 0, first = 0, last; first < count; part++, first = last) {
        uint32_t places[(1 << NEAR) + 1];
        const uint64_t mask = ((uint64_t)1 << near) - 1;
        last = starts[part];
        memset(places, 0, sizeof places);
        for (int64_t i = first; i < last; i++) places[(keyed[i].key >> (63 - bits) & mask) + 1]++;
        for (int64_t i = 1; i < (int64_t)1 << near; i++) places[i] += places[i - 1];
        for (int64_t i = first; i < last; i++) out[first + places[keyed[i].key >> (63 - bits) & mask]++] = i;
        uint64_t highest = 0;
        for (int64_t i = first; i < last; i++) {
            const int64_t one = out[i];
            const uint64_t key = keyed[one].key;
            if (key >= highest) {
                highest = key;
                continue;
            }
            int64_t at = i;
            for (; at > first && keyed[out[at - 1]].key > key; at--) out[at] = out[at - 1];
            out[at] = one;
        }
        for (int64_t i = first; i < last; i++) out[i] = keyed[out[i]].index;
    }
}

/* ---- Poisson numbers by inversion ---- */

#define SPAN 128

#if defined(__GNUC__)
__attribute__((noinline))
#endif
static void multiply(double *restrict terms, const double *restrict rates, double factor, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) terms[i] *= rates[i] * factor;
}

/* The number of sums of the first terms below u, at most `most`; the first term is given. Products must be rounded
 * before they are added, by any compiler: hence the function. */
KERNEL(poisson_below, double *restrict found, const double *restrict u, const double *restrict first,
       const double *restrict rates, int64_t most, int64_t count) {
    for (; count > 0; found += SPAN, u += SPAN, first += SPAN, rates += SPAN, count -= SPAN) {
        const int64_t n = count < SPAN ? count : SPAN;
        double terms[SPAN], sums[SPAN];
        memcpy(terms, first, (size_t)n * sizeof *terms);
        memcpy(sums, first, (size_t)n * sizeof *sums);
        memset(found, 0, (size_t)n * sizeof *found);
        for (int64_t k = 1; k <= most; k++) {
            double waiting = 0.0;
            SUM_OF(waiting) for (int64_t i = 0; i < n; i++) {
                const double waits = u[i] > sums[i] ? 1.0 : 0.0;
                found[i] += waits;
                waiting += waits;
            }
            if (waiting == 0.0 || k == most) break;
            multiply(terms, rates, 1.0 / (double)k, n);
            LOOP for (int64_t i = 0; i < n; i++) sums[i] += terms[i];
        }
    }
}
