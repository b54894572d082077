/* Fills the vector registers, does something, and gives back what they hold then. */
#ifndef VECTORS_H
#define VECTORS_H
#include <stdint.h>
#include <string.h>

/* Room for 32 registers of 64 bytes; smaller registers use less of it. */
struct vectors {
    uint8_t bytes[32 * 64];
} __attribute__((aligned(64)));

/* The widest vectors the processor and kernel support, in bytes: 16, 32 or 64. */
static inline int vector_bytes(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx") ? 32 : 16;
}

static inline size_t vectors_used(int width)
{
    return (size_t)width * (width == 64 ? 32 : 16);
}

#define EACH_LOW(X, a)                                                                                                 \
    X(0, a) X(1, a) X(2, a) X(3, a) X(4, a) X(5, a) X(6, a) X(7, a)                                                    \
    X(8, a) X(9, a) X(10, a) X(11, a) X(12, a) X(13, a) X(14, a) X(15, a)
#define EACH_HIGH(X, a)                                                                                                \
    X(16, a) X(17, a) X(18, a) X(19, a) X(20, a) X(21, a) X(22, a) X(23, a)                                            \
    X(24, a) X(25, a) X(26, a) X(27, a) X(28, a) X(29, a) X(30, a) X(31, a)
#define GET_XMM(n, a) "movdqu " #n "*16(%[" a "]), %%xmm" #n "\n"
#define PUT_XMM(n, a) "movdqu %%xmm" #n ", " #n "*16(%[" a "])\n"
#define GET_YMM(n, a) "vmovdqu " #n "*32(%[" a "]), %%ymm" #n "\n"
#define PUT_YMM(n, a) "vmovdqu %%ymm" #n ", " #n "*32(%[" a "])\n"
#define GET_ZMM(n, a) "vmovdqu64 " #n "*64(%[" a "]), %%zmm" #n "\n"
#define PUT_ZMM(n, a) "vmovdqu64 %%zmm" #n ", " #n "*64(%[" a "])\n"

#define VECTOR_ROUND(LOADS, STORES, TAIL)                                                                              \
    __asm__ volatile(LOADS "1: dec %[spins]\n"                                                                         \
                           "jg 1b\n"                                                                                   \
                           "test %[number], %[number]\n"                                                               \
                           "js 2f\n"                                                                                   \
                           "syscall\n"                                                                                 \
                           "2:\n" STORES TAIL                                                                          \
                     : [number] "+a"(number), [spins] "+r"(spins)                                                      \
                     : [in] "r"(in->bytes), [out] "r"(out->bytes), "D"(first), "S"(second), "d"(third)                 \
                     : "rcx", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

/*
 * Loads all vector registers from `in`, spins, makes a system call (none when `number` is negative), and stores the
 * registers to `out`. No other code of this thread runs between, signal handlers excepted. The call's result.
 */
static inline long with_vectors(int width, const struct vectors *in, struct vectors *out, long spins, long number,
                                long first, long second, long third)
{
    if (width == 64)
        VECTOR_ROUND(EACH_LOW(GET_ZMM, "in") EACH_HIGH(GET_ZMM, "in"),
                     EACH_LOW(PUT_ZMM, "out") EACH_HIGH(PUT_ZMM, "out"), "vzeroupper\n");
    else if (width == 32)
        VECTOR_ROUND(EACH_LOW(GET_YMM, "in"), EACH_LOW(PUT_YMM, "out"), "vzeroupper\n");
    else
        VECTOR_ROUND(EACH_LOW(GET_XMM, "in"), EACH_LOW(PUT_XMM, "out"), "");
    return number;
}
#endif
