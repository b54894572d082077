/* A restartable sequence that adds to a counter of the CPU it runs on. */
#ifndef RESTARTABLE_H
#define RESTARTABLE_H

#include <stdint.h>

#define SIGNATURE 0x53053053

struct area {
    uint32_t cpu_start, cpu;
    uint64_t sequence;
    uint32_t flags, node, mm_cid, end;
} __attribute__((aligned(32)));

/* Adds 1 to the slot if the thread is on this CPU and stays there until it is done. 0: done. */
static int add_on(volatile struct area *area, volatile long *slot, uint32_t cpu)
{
    int result = 1;
    asm volatile(".pushsection .data\n\t.balign 32\n"
                 "3:\t.long 0, 0\n\t.quad 1f, 2f - 1f, 4f\n\t.popsection\n\t"
                 "leaq 3b(%%rip), %%rax\n\tmovq %%rax, 8(%[area])\n"
                 "1:\tcmpl %[cpu], 4(%[area])\n\tjnz 5f\n\t"
                 "movq (%[slot]), %%rax\n\tpause\n\tincq %%rax\n\tmovq %%rax, (%[slot])\n"
                 "2:\tmovl $0, %[result]\n\tjmp 5f\n\t"
                 ".byte 0x0f, 0xb9, 0x3d\n\t.long %c[signature]\n"
                 "4:\tmovl $2, %[result]\n"
                 "5:\n"
                 : [result] "+r"(result)
                 : [area] "r"(area), [slot] "r"(slot), [cpu] "r"(cpu), [signature] "i"(SIGNATURE)
                 : "rax", "memory", "cc");
    return result;
}

#endif
