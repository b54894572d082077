/*
 * A program that attacks its stub, for root in a sandbox on systrap: it becomes user 1000 for the attacks, and is the
 * victim itself.  usage: hostile_stub WHAT [ARGUMENT...]
 *
 *   stale OPERATION claim|clone SECONDS   reads and writes through mappings that an operation took away, while a process
 *                                         of root's fills memory with a secret; OPERATION is a name of `operations`, or
 *                                         exit, exec, fork, seal, frames or jumps
 *   leftover ROUNDS                       exits, and leaves a system call behind for whoever runs in the stub next
 *   threads COUNT                         makes host threads, beyond what a user may have
 *   ids mapper|thread ID SECONDS          writes a process id of the host's where the stub notes its own
 *   pays OFFENCE SECONDS                  keeps the VMM waiting; OFFENCE is a name of `offences`
 *   restless                              spins while it waits for its turn
 *
 * One line on standard output says what came of it; the exit code is 0 if the attack was made and came to nothing, 1 if
 * it did harm, 2 if it could not be made.
 */
#include "hostile_stub.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { PAGE = 4096, WORDS = PAGE / 8, USER = 1000 };

/* The memory that the processes of a run share. */
static struct shared {
    volatile uint64_t stop;        /* everything ends */
    volatile uint64_t attacker;    /* process id, while it may be stopped */
    volatile uint64_t window;      /* number of the window that is open; even: none is */
    volatile uint64_t windows;     /* how many were */
    volatile uint64_t looks;       /* how often memory was looked at through one */
    volatile uint64_t seen;        /* pages of others that were seen */
    volatile uint64_t damaged;     /* pages that were found changed */
    volatile uint64_t rounds;      /* of the victim's */
    volatile uint64_t child_ends;  /* for whom an attacker has forked */
    volatile uint64_t last[64];    /* when each worker went on last, */
    volatile uint64_t waits[64];   /* and how long it waited at most, in milliseconds */
} *shared;

static void *pages_of(uint64_t count, int flags)
{
    void *memory = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void become_user(void)
{
    OK(setresgid(USER, USER, USER));
    OK(setresuid(USER, USER, USER));
    OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
}

static uint64_t now_ms(void)
{
    struct timespec now;
    OK(clock_gettime(CLOCK_MONOTONIC, &now));
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* --- stale mappings --- */

enum { REGION = 8192, VICTIM = 4096 };
#define OWN 0x0111000000000000ul
#define SECRET 0x5ec2e70000000000ul
#define TOP 0xffffff0000000000ul

/* The attacker's memory, and what it is made of. */
static uint64_t *region;
static uint64_t region_pages = REGION;
static int region_fd = -1, ends[2];

static void private_region(void)
{
    region_pages = REGION;
    region = pages_of(REGION, MAP_PRIVATE);
}

static void shared_region(void)
{
    region_pages = REGION;
    region_fd = FD(memfd_create("region", 0));
    OK(ftruncate(region_fd, REGION * PAGE));
    region = mmap(NULL, REGION * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, region_fd, 0);
    CHECK(region != MAP_FAILED);
}

static void heap_region(void)
{
    region_pages = REGION;
    uint64_t end = ((uint64_t)syscall(SYS_brk, 0) + PAGE - 1) & -(uint64_t)PAGE;
    CHECK_EQ(syscall(SYS_brk, end + REGION * PAGE), end + REGION * PAGE);
    region = (uint64_t *)end;
}

/* Pages that a child shares until they are written to; the first half of a message is there already. */
static void copied_region(void)
{
    static char half[32 * PAGE];
    region_pages = 64;
    region = pages_of(region_pages, MAP_PRIVATE);
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    CHECK_EQ(send(ends[1], half, sizeof half, 0), sizeof half);
}

static void forked_child(void)
{
    uint64_t mine = ++shared->child_ends;
    if (FD(fork()) == 0) {
        OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
        while (shared->child_ends == mine && !shared->stop)
            usleep(500);
        _exit(0);
    }
}

/* How memory is taken away. */
static const struct operation {
    const char *name;
    void (*make)(void);
    long number;
    /* Arguments; ADDRESS and LENGTH stand for the region's, FILE for its descriptor. */
    uint64_t args[6];
    /* The call itself blocks: nobody need be stopped. */
    bool blocks;
} operations[] = {
#define ADDRESS 0xadd0
#define LENGTH 0xadd1
#define FILE_OF 0xadd2
    {"munmap", private_region, SYS_munmap, {ADDRESS, LENGTH}, false},
    {"mremap", private_region, SYS_mremap, {ADDRESS, LENGTH, PAGE, 0}, false},
    {"dontneed", private_region, SYS_madvise, {ADDRESS, LENGTH, MADV_DONTNEED}, false},
    {"over", private_region, SYS_mmap, {ADDRESS, LENGTH, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1ul, 0}, false},
    {"brk", heap_region, SYS_brk, {ADDRESS}, false},
    {"ftruncate", shared_region, SYS_ftruncate, {FILE_OF, 0}, false},
    {"punch", shared_region, SYS_fallocate, {FILE_OF, 3, 0, LENGTH}, false},
    {"copy", copied_region, SYS_recvfrom, {FILE_OF, ADDRESS, LENGTH, MSG_WAITALL}, true},
};

static const struct operation *operation;
static uint64_t args[6];

static void prepare(void)
{
    operation->make();
    for (uint64_t i = 0; i < region_pages; i++)
        for (int word = 0; word < 2; word++)
            region[i * WORDS + 64 * word] = OWN | i;
    if (operation->blocks)
        forked_child();
    for (int i = 0; i < 6; i++)
        args[i] = operation->args[i] == ADDRESS ? (uint64_t)region
            : operation->args[i] == LENGTH      ? region_pages * PAGE
            : operation->args[i] == FILE_OF     ? (uint64_t)(operation->blocks ? ends[0] : region_fd)
                                                : operation->args[i];
}

static void clean_up(void)
{
    if (operation->make == heap_region)
        syscall(SYS_brk, region);
    else
        munmap(region, region_pages * PAGE);
    if (region_fd >= 0)
        close(region_fd);
    region_fd = -1;
    if (operation->blocks) {
        shared->child_ends++;
        close(ends[0]);
        close(ends[1]);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

/* Looks at every page once; what is another's is counted and changed. */
__attribute__((noinline)) static void look(volatile uint64_t *memory, uint64_t pages)
{
    for (uint64_t i = 0; i < pages; i++) {
        uint64_t found = memory[i * WORDS];
        if ((found & TOP) == SECRET) {
            shared->seen++;
            memory[i * WORDS + 64] = 0xbad;
        }
    }
    shared->looks++;
}

/* The claimed call is under way; returns when it is over. */
static void attack_by_claim(struct hs_claim *claim)
{
    if (hs_claim(claim, operation->number, args[0], args[1], args[2], args[3], args[4], args[5]) != 0)
        return;
    shared->window++;
    shared->child_ends += operation->blocks;
    while (!hs_has_turn(claim))
        look(region, region_pages);
    hs_go_on(claim);
}

static uint64_t *volatile hidden_memory;
static volatile uint64_t hidden_pages, hidden_ends;

static void hidden(void *unused UNUSED)
{
    for (;;)
        if (hidden_memory)
            look(hidden_memory, hidden_pages);
}

/* Lets a hidden thread that has faulted begin anew. */
static void revive(union hs_block *block)
{
    struct hs_context *context = (struct hs_context *)(block->area.frame + 8);
    if (block->area.frame == 0 || block->area.turn & HS_TURN_STUB)
        return;
    context->rip = (uint64_t)hidden;
    context->rsp = (uint64_t)block->bytes + 0x2ff8;
    block->area.command = HS_RUN;
    block->area.bases = 0;
    block->area.turn = HS_TURN_STUB;
    syscall(SYS_futex, &block->area.turn, FUTEX_WAKE, 1, 0, 0, 0);
}

static void attack_by_clone(union hs_block *block)
{
    static struct hs_claim own;
    if (!own.block)
        own.block = hs_new_block(MAP_PRIVATE);
    revive(block);
    /* Sleepers of the stub's wait on the host's word. */
    hs_gate(own.block, hs_mine(), SYS_futex, (uint64_t)&block->area.turn, FUTEX_WAKE, 1);
    hidden_pages = region_pages;
    hidden_memory = region;
    usleep(1000);
    shared->window++;
    shared->child_ends += operation->blocks;
    syscall(operation->number, args[0], args[1], args[2], args[3], args[4], args[5]);
    hidden_memory = NULL;
}

static struct hs_claim claim;

/* A fault that the kernel hears of, since the thread's turn had come meanwhile: the call is over as well. */
static void on_fault(int signal UNUSED)
{
    hs_load(&claim.registers, 1);
}

static void on_continue(int signal UNUSED)
{
}

static void attacker(bool by_clone)
{
    become_user();
    if (!hs_find_gate())
        _exit(2);
    /* One thread of the stub's, always the same. */
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
    sched_setaffinity(0, sizeof last, &last);
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    OK(sigaction(SIGSEGV, &action, NULL));
    OK(sigaction(SIGBUS, &action, NULL));
    /* Without SA_RESTART: it ends what blocks. */
    OK(sigaction(SIGCONT, &(struct sigaction){.sa_handler = on_continue}, NULL));
    claim.block = hs_new_block(MAP_PRIVATE);
    union hs_block *block = hs_new_block(MAP_PRIVATE);
    /* Touched, since a hidden thread can have nothing brought in. */
    look((uint64_t *)block, 1);
    if (by_clone && hs_clone(block, hidden, NULL) < 0)
        _exit(2);
    while (!shared->stop) {
        prepare();
        shared->attacker = (uint64_t)getpid();
        if (by_clone)
            attack_by_clone(block);
        else
            attack_by_claim(&claim);
        shared->window++;
        shared->windows++;
        shared->attacker = 0;
        clean_up();
    }
    _exit(0);
}

/*
 * Exit and exec: the process claims to make the call, and looks at its memory until it is ended. Another one follows.
 */
static void leaving_attacker(const char *name)
{
    become_user();
    if (!hs_find_gate())
        _exit(2);
    operation = &operations[0];
    while (!shared->stop) {
        pid_t child = FD(fork());
        if (child == 0) {
            static const char *const nothing[] = {"hostile_stub", "nothing", NULL};
            claim.block = hs_new_block(MAP_PRIVATE);
            prepare();
            shared->attacker = (uint64_t)getpid();
            bool exec = strcmp(name, "exec") == 0;
            int done = exec ? hs_claim(&claim, SYS_execve, (uint64_t)"/proc/self/exe", (uint64_t)nothing, 0)
                            : hs_claim(&claim, SYS_exit_group, 0);
            shared->window++;
            while (done == 0)
                look(region, region_pages);
            _exit(3);
        }
        int status;
        waitpid(child, &status, 0);
        shared->attacker = 0;
        shared->window += shared->window % 2;
        shared->windows++;
    }
    _exit(0);
}

/*
 * Writes that must not be seen: the process claims to fork, or to unmap a file, and goes on writing to its memory; the
 * child, or the process that sealed the file, must see nothing of that.
 */
__attribute__((noinline)) static void write_on(volatile uint64_t *memory, uint64_t pages)
{
    for (uint64_t i = 0; i < pages; i++)
        memory[i * WORDS] = OWN | shared->looks;
    shared->looks++;
}

static bool changes(const volatile uint64_t *memory, uint64_t pages)
{
    static uint64_t first[REGION];
    for (uint64_t i = 0; i < pages; i++)
        first[i] = memory[i * WORDS];
    for (int round = 0; round < 10; round++) {
        usleep(2000);
        for (uint64_t i = 0; i < pages; i++)
            if (memory[i * WORDS] != first[i])
                return true;
    }
    return false;
}

static void writing_attacker(const char *name)
{
    become_user();
    if (!hs_find_gate())
        _exit(2);
    claim.block = hs_new_block(MAP_PRIVATE);
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    OK(sigaction(SIGSEGV, &action, NULL));
    OK(sigaction(SIGCONT, &(struct sigaction){.sa_handler = on_continue}, NULL));
    bool seal = strcmp(name, "seal") == 0;
    while (!shared->stop) {
        region_pages = 256;
        region_fd = FD(memfd_create("region", MFD_ALLOW_SEALING));
        OK(ftruncate(region_fd, (off_t)(region_pages * PAGE)));
        region = mmap(NULL, region_pages * PAGE, PROT_READ | PROT_WRITE, seal ? MAP_SHARED : MAP_PRIVATE, region_fd, 0);
        CHECK(region != MAP_FAILED);
        write_on(region, region_pages);
        pid_t parent = getpid(), sealer = 0;
        if (seal && (sealer = FD(fork())) == 0) {
            munmap(region, region_pages * PAGE);
            while (shared->window % 2 == 0)
                ;
            for (int i = 0; i < 2000; i++)
                if (fcntl(region_fd, F_ADD_SEALS, F_SEAL_WRITE) == 0) {
                    region = mmap(NULL, region_pages * PAGE, PROT_READ, MAP_SHARED, region_fd, 0);
                    CHECK(region != MAP_FAILED);
                    shared->damaged += changes(region, region_pages);
                    break;
                }
            _exit(0);
        }
        shared->attacker = (uint64_t)parent;
        int over = seal ? hs_claim(&claim, SYS_munmap, (uint64_t)region, region_pages * PAGE)
                        : hs_claim(&claim, SYS_clone, SIGCHLD);
        if (over != 0 && getpid() != parent) {
            shared->damaged += changes(region, region_pages);
            _exit(0);
        }
        if (over == 0) {
            shared->window++;
            while (!hs_has_turn(&claim))
                write_on(region, region_pages);
            hs_go_on(&claim);
        }
        shared->window += shared->window % 2;
        shared->windows++;
        shared->attacker = 0;
        while (waitpid(-1, NULL, 0) > 0)
            ;
        munmap(region, region_pages * PAGE);
        close(region_fd);
    }
    _exit(0);
}

/* --- chaos --- */

static uint64_t chance(void)
{
    static uint64_t state;
    if (state == 0)
        state = __builtin_ia32_rdtsc() | 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/* A word that somebody may not have thought of. */
static uint64_t odd_word(void)
{
    static const uint64_t odd[] = {0, 1, ~0ul, 1ul << 63, 1ul << 47, (1ul << 47) - 1, HS_TEXT, HS_ORDERS, HS_AREA,
                                   HS_AREA + 0x7000, 0xffff800000000000ul, 0x7fff00000000ul, 0x100000000000ul,
                                   0x0000002b00330033ul, 0x002b000000000010ul, 0xfffffffful, 0x80000000ul};
    uint64_t which = chance() % (2 * sizeof odd / sizeof *odd);
    return which < sizeof odd / sizeof *odd ? odd[which] : chance() >> chance() % 64;
}

/* Reports traps that never were, with frames that the host's kernel did not write. */
__attribute__((noreturn)) static void forge_frames(void)
{
    static const int handled[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGUSR1, SIGSEGV, SIGSYS};
    static char other[1 << 16];
    OK(sigaltstack(&(stack_t){.ss_sp = other, .ss_size = sizeof other}, NULL));
    for (size_t i = 0; i < sizeof handled / sizeof *handled; i++)
        OK(sigaction(handled[i], &(struct sigaction){.sa_handler = on_fault, .sa_flags = SA_NODEFER | SA_ONSTACK},
                     NULL));
    for (;;) {
        if (hs_save(&claim.registers) != 0)
            continue;
        shared->looks++;
        struct hs_area *area = claim.area = hs_mine();
        struct hs_context *context = hs_context(area);
        hs_forge(area, &claim.registers, (uint64_t)hs_back, SYS_getpid, (const uint64_t[6]){0});
        area->signal = chance() % 8 == 0 ? (uint32_t)chance() : (uint32_t)handled[chance() % 7];
        context->si_code = (uint32_t)(chance() % 4 ? 1 + chance() % 3 : odd_word());
        context->trapno = chance() % 2 ? chance() % 40 : odd_word();
        context->cr2 = odd_word();
        /* Also the processor's extended state, which is behind the frame. */
        uint64_t words = (HS_AREA_BYTES - ((uint64_t)context & (HS_AREA_BYTES - 1))) / 8;
        for (uint64_t i = chance() % 6; i > 0; i--) {
            uint64_t at = chance() % 2 ? chance() % (sizeof *context / 8) : chance() % words;
            if (at * 8 != offsetof(struct hs_context, rip))
                ((volatile uint64_t *)context)[at] = odd_word();
        }
        for (uint64_t i = chance() % 3; i > 0; i--)
            area->scratch[chance() % 480] = odd_word();
        if (chance() % 4 == 0)
            area->trap_fs_base = odd_word();
        uint64_t kept[HS_KEPT];
        for (int i = 0; i < HS_KEPT; i++)
            kept[i] = (uint64_t)area;
        kept[hs_context_register] = (uint64_t)context;
        __atomic_store_n(&area->turn, 0, __ATOMIC_SEQ_CST);
        hs_leap(hs_the_gate, SYS_futex, (const uint64_t[6]){(uint64_t)&area->turn, FUTEX_WAKE, 1}, kept);
    }
}

static void *map_and_unmap(void *unused UNUSED)
{
    for (;;) {
        uint64_t *memory = pages_of(16, MAP_PRIVATE);
        for (int i = 0; i < 16; i++)
            memory[i * WORDS] = 1;
        munmap(memory, 16 * PAGE);
    }
    return NULL;
}

/* Jumps to a byte of the stub's text with registers by chance, while a sister changes mappings. */
__attribute__((noreturn)) static void jump_anywhere(void)
{
    pthread_t sister;
    PT(pthread_create(&sister, NULL, map_and_unmap, NULL));
    static const uint64_t numbers[] = {1, 3, 8, 9, 10, 11, 15, 47, 56, 158, 202, 317, 436};
    struct hs_area *area = hs_mine();
    uint64_t kept[HS_KEPT], places[] = {(uint64_t)claim.block, (uint64_t)area, HS_ORDERS, HS_ORDERS + 256, 1, 0};
    uint64_t words[6];
    hs_aim(claim.block, &claim.registers, area, HS_TEXT + chance() % 0x600);
    for (int i = 0; i < HS_KEPT; i++) {
        kept[i] = places[chance() % 6];
        words[i] = chance() % 2 ? places[chance() % 6] : odd_word();
    }
    shared->looks++;
    hs_leap(HS_TEXT + chance() % 0x600, (long)numbers[chance() % 13], words, kept);
}

static void chaotic_attacker(const char *name)
{
    become_user();
    if (!hs_find_gate())
        _exit(2);
    while (!shared->stop) {
        pid_t child = FD(fork());
        if (child == 0) {
            OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
            claim.block = hs_new_block(MAP_PRIVATE);
            if (strcmp(name, "frames") == 0)
                forge_frames();
            jump_anywhere();
        }
        hs_ends_well(child, 30);
        shared->windows++;
    }
    _exit(0);
}

/* Keeps each window open: stops the attacker in the middle of its call, or ends what the call waits for. */
static void holder(void)
{
    become_user();
    for (uint64_t last = 0; !shared->stop;) {
        uint64_t window = shared->window;
        pid_t pid = (pid_t)shared->attacker;
        if (window == last || window % 2 == 0 || pid == 0) {
            __builtin_ia32_pause();
            continue;
        }
        last = window;
        if (!operation || !operation->blocks)
            kill(pid, SIGSTOP);
        for (int i = 0; i < 40 && shared->window == window; i++)
            usleep(1000);
        kill(pid, SIGCONT);
    }
    _exit(0);
}

/* Fills memory with a secret, and sees that it stays. */
static void victim(uint64_t end)
{
    for (; now_ms() < end; shared->rounds++) {
        uint64_t *memory = pages_of(VICTIM, MAP_PRIVATE);
        for (uint64_t i = 0; i < VICTIM; i++)
            for (int word = 0; word < 2; word++)
                memory[i * WORDS + 64 * word] = SECRET | shared->rounds << 16 | i;
        usleep(2000);
        for (uint64_t i = 0; i < VICTIM; i++)
            for (int word = 0; word < 2; word++)
                shared->damaged += memory[i * WORDS + 64 * word] != (SECRET | shared->rounds << 16 | i);
        munmap(memory, VICTIM * PAGE);
    }
}

static int stale(const char *name, const char *how, long seconds)
{
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (strcmp(operations[i].name, name) == 0)
            operation = &operations[i];
    pid_t attacking = FD(fork());
    if (attacking == 0) {
        if (operation)
            attacker(strcmp(how, "clone") == 0);
        else if (strcmp(name, "exec") == 0 || strcmp(name, "exit") == 0)
            leaving_attacker(name);
        else if (strcmp(name, "fork") == 0 || strcmp(name, "seal") == 0)
            writing_attacker(name);
        else
            chaotic_attacker(name);
    }
    pid_t holding = FD(fork());
    if (holding == 0)
        holder();
    victim(now_ms() + (uint64_t)seconds * 1000);
    shared->stop = 1;
    int status = 0;
    usleep(200000);
    kill(attacking, SIGCONT);
    bool ended = waitpid(attacking, &status, WNOHANG) == attacking;
    if (!ended)
        kill(attacking, SIGKILL);
    kill(holding, SIGKILL);
    printf("%s by %s: %lu windows, %lu looks, %lu rounds of the victim, %lu pages seen, %lu changed, status %#x\n", name,
           how, shared->windows, shared->looks, shared->rounds, shared->seen, shared->damaged, status);
    if (shared->seen || shared->damaged)
        return 1;
    return shared->looks && shared->rounds ? 0 : 2;
}

/* --- what comes after --- */

/*
 * Children of user 1000 exit, and leave a system call behind that only root may make. Then processes of root's begin, by
 * fork and by exec: each must be itself from its first instruction on.
 */
static int leftover(const char *self, long rounds)
{
    pid_t canary = CHILD(while (!shared->stop) usleep(10000));
    pid_t attacking = FD(fork());
    if (attacking == 0) {
        become_user();
        if (!hs_find_gate())
            _exit(2);
        for (;;) {
            while (shared->window % 2 == 0)
                usleep(200);
            for (int i = 0; i < 3; i++) {
                pid_t child = FD(fork());
                if (child == 0)
                    hs_leave_behind(SYS_kill, (const uint64_t[6]){(uint64_t)canary, SIGKILL});
                int status;
                shared->windows += waitpid(child, &status, 0) == child && status == 0;
            }
            shared->window++;
        }
    }
    int harmed = 0, ended;
    for (long round = 0; round < rounds; round++) {
        shared->window++;
        while (shared->window % 2 != 0 && waitpid(attacking, &ended, WNOHANG) == 0)
            usleep(200);
        for (int i = 0; i < 4; i++) {
            pid_t child = FD(fork());
            if (child == 0) {
                if (i % 2 == 0)
                    _exit(7);
                execl(self, self, "nothing", NULL);
                _exit(1);
            }
            int status;
            CHECK_EQ(waitpid(child, &status, 0), child);
            harmed += !WIFEXITED(status) || WEXITSTATUS(status) != 7;
        }
    }
    int lives = waitpid(canary, &ended, WNOHANG) == 0;
    kill(attacking, SIGKILL);
    kill(canary, SIGKILL);
    printf("%lu calls left behind, %d of root's processes harmed, the canary %s\n", shared->windows, harmed,
           lives ? "lives" : "is dead");
    return harmed || !lives ? 1 : shared->windows == 0 ? 2 : 0;
}

/* --- more threads than one may have --- */

/* Tries the stub's `clone` as user 1000, who may have five threads; the host is asked from outside what came of it. */
static int threads(long wanted)
{
    become_user();
    OK(setrlimit(RLIMIT_NPROC, &(struct rlimit){5, 5}));
    long made = 0;
    for (; made < wanted; made++) {
        union hs_block *block = hs_new_block(MAP_PRIVATE);
        if (hs_clone(block, hidden, NULL) < 0)
            break;
    }
    uint64_t found[64];
    int count = hs_instructions(found, 64);
    for (int i = 0; i < count && made == 0; i++) {
        pid_t child = FD(fork());
        if (child == 0) {
            union hs_block *block = hs_new_block(MAP_PRIVATE);
            hs_call_at(found[i], block, hs_mine(), SYS_clone,
                       (const uint64_t[6]){HS_THREAD_FLAGS, (uint64_t)block->bytes + 0x3000});
            for (;;)
                usleep(1000);
        }
        hs_ends_well(child, 60);
    }
    printf("%ld threads, %d instructions tried\n", made, count);
    fflush(stdout);
    usleep(500000);
    return 0;
}

/* --- words that the host could be asked with --- */

/* Answers the VMM in place of every stub thread of the process, of which one runs. */
__attribute__((noreturn)) static void answer(uint64_t id)
{
    static const struct timespec long_time = {1, 0};
    struct hs_claim own = {.block = claim.block};
    for (;;) {
        for (uint64_t i = 0; i < hs_areas(); i++) {
            own.area = hs_area(i);
            if (!hs_has_turn(&own))
                continue;
            /* So slow that the VMM gives up spinning. */
            for (uint64_t start = __builtin_ia32_rdtsc(); __builtin_ia32_rdtsc() - start < 1000000;)
                __builtin_ia32_pause();
            if (own.area->command == HS_SPAWN) {
                own.area->value = id;
                own.area->errno_ = 0;
            } else if (own.area == claim.area) {
                hs_forge(own.area, &claim.registers, (uint64_t)hs_back, SYS_nanosleep,
                         (const uint64_t[6]){(uint64_t)&long_time});
            } else {
                own.area->frame = own.area->frame_at;
                own.area->signal = SIGUSR1;
                own.area->errno_ = 0;
            }
            struct hs_area *stack = own.area;
            if (__atomic_exchange_n(&own.area->turn, 0, __ATOMIC_SEQ_CST) & HS_TURN_SLEEPS)
                hs_gate(own.block, claim.area, SYS_futex, (uint64_t)&stack->turn, FUTEX_WAKE, 1);
        }
    }
}

/* Writes another process's id wherever the stub notes one of its own. */
static int ids(const char *how, uint64_t id, long seconds)
{
    CHECK(hs_find_gate());
    puts("ready");
    fflush(stdout);
    uint64_t end = now_ms() + (uint64_t)seconds * 1000;
    claim.block = hs_new_block(MAP_PRIVATE);
    if (strcmp(how, "thread") == 0) {
        pid_t child = FD(fork());
        if (child == 0) {
            OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
            /* A new thread, which another vCPU runs, needs another thread of the stub's. */
            char *stack = pages_of(4, MAP_PRIVATE);
            if (hs_claim(&claim, SYS_clone, HS_THREAD_FLAGS, (uint64_t)stack + 4 * PAGE - 64) == 0)
                answer(id);
            _exit(0);
        }
        pid_t busy = FD(fork());
        if (busy == 0)
            for (;;)
                ;
        usleep((useconds_t)seconds * 1000000);
        kill(busy, SIGKILL);
        kill(child, SIGKILL);
    }
    while (now_ms() < end) {
        for (uint64_t i = 0; i < hs_areas(); i++)
            hs_area(i)->mapper_tid = (uint32_t)id, hs_area(i)->value = id;
        uint64_t *memory = pages_of(4, MAP_PRIVATE);
        memory[0] = memory[WORDS] = 1;
        munmap(memory, 4 * PAGE);
    }
    puts("done");
    return 0;
}

/* --- who pays --- */

/* Works, and notes how long it was kept from it, in milliseconds. */
static void worker(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (uint64_t last = shared->last[cpu] = now_ms(); !shared->stop; shared->rounds++) {
        uint64_t *memory = pages_of(1, MAP_PRIVATE);
        memory[0] = 1;
        munmap(memory, PAGE);
        uint64_t now = now_ms();
        if (now - last > shared->waits[cpu])
            shared->waits[cpu] = now - last;
        shared->last[cpu] = last = now;
    }
    _exit(0);
}

/* Waits for the word by which the mapper learns of orders, so that it is woken in the mapper's place. */
static void steal(void *unused UNUSED)
{
    union hs_block *block = claim.block;
    for (;;) {
        uint64_t sequence = *(volatile uint32_t *)HS_ORDERS;
        hs_gate(block, block, SYS_futex, HS_ORDERS, FUTEX_WAIT, sequence, 0);
        shared->windows++;
    }
}

__attribute__((noreturn)) static void *change_mappings(void *unused UNUSED)
{
    for (;;) {
        uint64_t *memory = pages_of(4, MAP_PRIVATE);
        memory[0] = memory[WORDS] = 1;
        munmap(memory, 4 * PAGE);
        shared->looks++;
    }
}

static void thief(void)
{
    union hs_block *block = hs_new_block(MAP_PRIVATE);
    if (hs_clone(block, steal, NULL) < 0) {
        /* The thread that steals is one that the VMM takes for a sleeping one; its sister gives the orders. */
        static struct timespec long_time = {1000, 0};
        pthread_t sister;
        PT(pthread_create(&sister, NULL, change_mappings, NULL));
        if (hs_claim(&claim, SYS_nanosleep, (uint64_t)&long_time) == 0)
            for (;;) {
                uint64_t sequence = *(volatile uint32_t *)HS_ORDERS;
                hs_gate(claim.block, claim.area, SYS_futex, HS_ORDERS, FUTEX_WAIT, sequence, 0);
                shared->windows++;
            }
    }
    change_mappings(NULL);
}

/* Blocks the signal that would bring it back. */
static void deaf(void)
{
    uint64_t word = 0;
    /* Touches the page first: a fault later would be fatal, since its signal is blocked then. */
    shared->looks++;
    hs_mask = ~0ul;
    hs_gate(claim.block, hs_mine(), SYS_futex, (uint64_t)&word, FUTEX_WAKE, 1);
    for (;;)
        shared->looks++;
}

/* Never gives the turn back by itself, and wakes nobody when it is made to. */
static void silent(void)
{
    struct hs_area *area = hs_mine();
    for (;; shared->looks++)
        area->turn = HS_TURN_STUB;
}

/*
 * As deaf, but never seen asleep: it lets itself be looked at only when it runs, by waking who looks, and sleeps in
 * between, so that it uses next to no processor time either.
 */
static void dodger(void)
{
    static struct timespec while_unseen = {0, 8000000};
    shared->looks++;
    hs_mask = ~0ul;
    struct hs_area *area = hs_mine();
    area->scratch[100] = 0;
    for (;;) {
        area->turn = HS_TURN_STUB;
        hs_gate(claim.block, area, SYS_futex, (uint64_t)&area->turn, FUTEX_WAKE, 0x7fffffff);
        /* Once the VMM has looked, it notes that it sleeps again. */
        for (uint64_t start = __builtin_ia32_rdtsc(); !(area->turn & HS_TURN_SLEEPS);)
            if (__builtin_ia32_rdtsc() - start > 1000000)
                break;
        hs_gate(claim.block, area, SYS_futex, (uint64_t)&area->scratch[100], FUTEX_WAIT, 0, (uint64_t)&while_unseen);
        shared->looks++;
    }
}

__attribute__((noreturn)) static void *give_way(void *unused UNUSED)
{
    for (;;)
        sched_yield();
}

/*
 * Claims calls without a signal, as patched sites make them, and does not leave one when it is told to: the registers of
 * its processor would not be to be had. Its sister takes turns with it.
 */
static void stayer(void)
{
    pthread_t sister;
    PT(pthread_create(&sister, NULL, give_way, NULL));
    uint8_t *stack = pages_of(4, MAP_PRIVATE);
    stack[4 * PAGE - 1] = 1;
    for (struct hs_area *area = hs_mine();;) {
        shared->looks++;
        area->call[7] = SYS_sched_yield;
        area->call[13] = (uint64_t)hs_back;
        area->call[14] = HS_RFLAGS;
        area->call[15] = (uint64_t)stack + 4 * PAGE - 64;
        area->signal = 0;
        area->errno_ = 0;
        area->has_call = 1;
        if (__atomic_exchange_n(&area->turn, 0, __ATOMIC_SEQ_CST) & HS_TURN_SLEEPS)
            hs_gate(claim.block, area, SYS_futex, (uint64_t)&area->turn, FUTEX_WAKE, 0x7fffffff);
        while (!(area->turn & HS_TURN_STUB))
            ;
        while (area->command == HS_LEAVE_CALL)
            ;
    }
}

static const struct offence {
    const char *name;
    void (*commit)(void);
} offences[] = {{"thief", thief}, {"deaf", deaf}, {"silent", silent}, {"dodger", dodger},
              {"stayer", stayer}};

/*
 * Generous, for hosts whose cores are all busy: an offender should be found out within 100 ms. Such a host may also keep
 * everyone waiting for longer once in a while, but not in every run, as an offence would.
 */
enum { LONGEST_WAIT_MS = 1000, RUNS = 3 };

__attribute__((noreturn)) static void offend(const char *name)
{
    become_user();
    claim.block = hs_new_block(MAP_PRIVATE);
    for (size_t i = 0; i < sizeof offences / sizeof *offences; i++)
        if (strcmp(offences[i].name, name) == 0)
            offences[i].commit();
    _exit(2);
}

/* One run; its exit code. */
static int run_offence(const char *name, long seconds)
{
    int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    memset(shared, 0, sizeof *shared);
    pid_t workers[64];
    for (int i = 0; i < cpus && i < 64; i++)
        if ((workers[i] = FD(fork())) == 0)
            worker(i);
    for (int i = 0; i < cpus && i < 64; i++)
        while (shared->last[i] == 0)
            usleep(1000);
    /* As many at a time as there are vCPUs; those that are ended for it are replaced. */
    pid_t offending[64] = {0};
    int offenders = 0;
    for (uint64_t end = now_ms() + (uint64_t)seconds * 1000; now_ms() < end; usleep(10000))
        for (int i = 0; i < cpus && i < 64; i++)
            if (offending[i] == 0 || waitpid(offending[i], NULL, WNOHANG) == offending[i]) {
                offending[i] = FD(fork());
                if (offending[i] == 0)
                    offend(name);
                offenders++;
            }
    uint64_t worst = 0;
    for (int i = 0; i < cpus && i < 64; i++) {
        uint64_t last = shared->last[i], now = now_ms();
        worst = now > last + worst ? now - last : worst;
        worst = shared->waits[i] > worst ? shared->waits[i] : worst;
    }
    shared->stop = 1;
    for (int i = 0; i < cpus && i < 64; i++) {
        kill(offending[i], SIGKILL);
        kill(workers[i], SIGKILL);
        status_of(offending[i]);
        status_of(workers[i]);
    }
    printf("%s: %d offenders, %lu thefts, %lu rounds of theirs, %lu of the workers, who waited at most %lu ms\n", name,
           offenders, shared->windows, shared->looks, shared->rounds, worst);
    fflush(stdout);
    return worst > LONGEST_WAIT_MS ? 1 : shared->rounds && (shared->looks || shared->windows) ? 0 : 2;
}

static int pays(const char *name, long seconds)
{
    CHECK(hs_find_gate());
    int code = run_offence(name, seconds);
    for (int i = 1; i < RUNS && code == 1; i++)
        code = run_offence(name, seconds);
    return code;
}

/* Makes the stub spin for its next turn however long that takes, and sleeps. */
__attribute__((noreturn)) static void restless(void)
{
    become_user();
    puts("ready");
    fflush(stdout);
    for (;;) {
        for (uint64_t i = 0; i < hs_areas(); i++)
            hs_area(i)->spin_cycles = ~0ul;
        sleep(1000);
    }
}

int main(int count, char **words)
{
    CHECK(count > 1);
    if (strcmp(words[1], "nothing") == 0)
        return 7;
    if (!hs_has_stub()) {
        puts("there is no stub here");
        return 2;
    }
    shared = pages_of(1, MAP_SHARED);
    if (strcmp(words[1], "stale") == 0 && count == 5)
        return stale(words[2], words[3], atol(words[4]));
    if (strcmp(words[1], "threads") == 0 && count == 3)
        return threads(atol(words[2]));
    if (strcmp(words[1], "ids") == 0 && count == 5)
        return ids(words[2], strtoul(words[3], NULL, 10), atol(words[4]));
    if (strcmp(words[1], "pays") == 0 && count == 4)
        return pays(words[2], atol(words[3]));
    if (strcmp(words[1], "restless") == 0)
        restless();
    if (strcmp(words[1], "leftover") == 0 && count == 3)
        return leftover(words[0], atol(words[2]));
    FAIL("unknown: %s", words[1]);
}
