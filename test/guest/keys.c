/* Keys and keyrings: keyrings(7), add_key(2), request_key(2), keyctl(2). */
#include "check.h"
#include <grp.h>
#include <linux/keyctl.h>
#include <pthread.h>

typedef int32_t key_serial;

static key_serial add(const char *type, const char *name, const void *payload, size_t size, int ring)
{
    return (key_serial)syscall(SYS_add_key, type, name, payload, size, ring);
}

static key_serial user(const char *name, int ring)
{
    return FD(add("user", name, "secret", 6, ring));
}

static key_serial ring(const char *name, int within)
{
    return FD(add("keyring", name, NULL, 0, within));
}

static key_serial request(const char *type, const char *name, int to)
{
    return (key_serial)syscall(SYS_request_key, type, name, NULL, to);
}

static long ctl(int operation, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
    return syscall(SYS_keyctl, operation, a, b, c, d);
}

#define SES KEY_SPEC_SESSION_KEYRING

/* Every test has a session of its own. */
static void begin(void)
{
    FD(ctl(KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0));
}

static void keys_are_added_and_read(void)
{
    begin();
    char text[64] = "";
    key_serial key = user("one", SES);
    CHECK(key > 0);
    CHECK_EQ(ctl(KEYCTL_READ, key, (long)text, sizeof text, 0), 6);
    CHECK(!memcmp(text, "secret", 6));
    /* The same name again is an update. */
    CHECK_EQ(add("user", "one", "other!!", 7, SES), key);
    CHECK_EQ(ctl(KEYCTL_READ, key, (long)text, sizeof text, 0), 7);
    OK(ctl(KEYCTL_UPDATE, key, (long)"abc", 3, 0));
    CHECK_EQ(ctl(KEYCTL_READ, key, 0, 0, 0), 3);
    memset(text, 'x', sizeof text);
    CHECK_EQ(ctl(KEYCTL_READ, key, (long)text, 2, 0), 3);
    CHECK(text[0] == 'x' && text[1] == 'x');
    CHECK_ERR(ctl(KEYCTL_READ, key, 8, 100, 0), EFAULT);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "user;%d;%d;3f010000;one", geteuid(), getegid());
    CHECK_EQ(ctl(KEYCTL_DESCRIBE, key, (long)text, sizeof text, 0), strlen(wanted) + 1);
    CHECK(!strcmp(text, wanted));
    CHECK_ERR(ctl(KEYCTL_UPDATE, key, (long)text, 5000, 0), EINVAL);
    CHECK_ERR(ctl(KEYCTL_UPDATE, key, 0, 0, 0), EINVAL);
    key = ring("ring", SES);
    CHECK_ERR(ctl(KEYCTL_UPDATE, key, (long)"abc", 3, 0), EOPNOTSUPP);
    /* A keyring of the same name takes the place of the first. */
    CHECK(ring("ring", SES) != key);
}

static void what_is_wrong_is_refused(void)
{
    begin();
    char longest[5000], payload[40000] = "x";
    memset(longest, 'x', sizeof longest);
    longest[4999] = 0;
    CHECK_ERR(add(NULL, "x", "x", 1, SES), EFAULT);
    CHECK_ERR(add("", "x", "x", 1, SES), EINVAL);
    CHECK_ERR(add("nosuch", "x", "x", 1, SES), ENODEV);
    CHECK_ERR(add(".user", "x", "x", 1, SES), EPERM);
    CHECK_ERR(add("a type with a name that is far too long", "x", "x", 1, SES), EINVAL);
    CHECK_ERR(add("user", longest, "x", 1, SES), EINVAL);
    CHECK_ERR(add("user", NULL, "x", 1, SES), EINVAL);
    CHECK_ERR(add("user", "", "x", 1, SES), EINVAL);
    CHECK_ERR(add("user", "x", NULL, 1, SES), EFAULT);
    CHECK_ERR(add("user", "x", "x", 0, SES), EINVAL);
    CHECK_ERR(add("user", "x", payload, 32768, SES), EINVAL);
    CHECK_ERR(add("user", "x", payload, 1 << 20, SES), EINVAL);
    CHECK(add("user", "x", payload, 32767, SES) > 0 || errno == EDQUOT);
    CHECK_ERR(add("keyring", "x", "x", 1, SES), EINVAL);
    CHECK_ERR(add("keyring", ".x", NULL, 0, SES), EPERM);
    CHECK_ERR(add("logon", "x", "x", 1, SES), EINVAL);
    CHECK_ERR(add("user", "x", "x", 1, 0), EINVAL);
    CHECK_ERR(add("user", "x", "x", 1, -6), EINVAL);
    CHECK_ERR(add("user", "x", "x", 1, -100), EINVAL);
    CHECK_ERR(add("user", "x", "x", 1, INT32_MAX), ENOKEY);
    CHECK_ERR(add("user", "x", "x", 1, user("y", SES)), ENOTDIR);
    CHECK_ERR(request("user", "nosuch", 0), ENOKEY);
    CHECK_ERR(request("nosuch", "x", 0), ENOKEY);
    CHECK_ERR(request(".user", "x", 0), EPERM);
    CHECK_ERR(request("user", NULL, 0), EFAULT);
    CHECK_ERR(ctl(1000, 0, 0, 0, 0), EOPNOTSUPP);
    CHECK_ERR(ctl(KEYCTL_INSTANTIATE, SES, 0, 0, 0), EPERM);
    CHECK_ERR(ctl(KEYCTL_ASSUME_AUTHORITY, -1, 0, 0, 0), EINVAL);
    OK(ctl(KEYCTL_ASSUME_AUTHORITY, 0, 0, 0, 0));
    CHECK_ERR(ctl(KEYCTL_JOIN_SESSION_KEYRING, (long)".x", 0, 0, 0), EPERM);
    CHECK_ERR(ctl(KEYCTL_SETPERM, SES, -1, 0, 0), EINVAL);
    CHECK_ERR(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 0, 0, 0), ENOKEY);
    CHECK_ERR(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 0, 0, 0), ENOKEY);
    CHECK_ERR(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_REQKEY_AUTH_KEY, 0, 0, 0), ENOKEY);
}

/* Who holds a logon key cannot read it. */
static void logon_keys(void)
{
    begin();
    key_serial key = FD(add("logon", "service:name", "secret", 6, SES));
    char text[8];
    CHECK_ERR(ctl(KEYCTL_READ, key, (long)text, sizeof text, 0), EOPNOTSUPP);
    CHECK_ERR(add("logon", ":name", "secret", 6, SES), EINVAL);
}

static void links(void)
{
    begin();
    key_serial one = ring("one", SES), two = ring("two", one), key = user("key", two), found[8];
    /* A search goes through what is held. */
    CHECK_EQ(request("user", "key", 0), key);
    CHECK_EQ(ctl(KEYCTL_SEARCH, one, (long)"user", (long)"key", 0), key);
    CHECK_EQ(ctl(KEYCTL_SEARCH, one, (long)"user", (long)"key", one), key);
    CHECK_EQ(ctl(KEYCTL_READ, one, (long)found, sizeof found, 0), 8);
    CHECK((found[0] == two && found[1] == key) || (found[0] == key && found[1] == two));
    CHECK_ERR(ctl(KEYCTL_SEARCH, key, (long)"user", (long)"key", 0), ENOTDIR);
    CHECK_ERR(ctl(KEYCTL_SEARCH, one, (long)"user", (long)"nosuch", 0), ENOKEY);
    OK(ctl(KEYCTL_UNLINK, key, one, 0, 0));
    CHECK_ERR(ctl(KEYCTL_UNLINK, key, one, 0, 0), ENOENT);
    CHECK_ERR(ctl(KEYCTL_UNLINK, one, key, 0, 0), ENOTDIR);
    CHECK_ERR(ctl(KEYCTL_LINK, one, key, 0, 0), ENOTDIR);
    /* No keyring is within itself. */
    CHECK_ERR(ctl(KEYCTL_LINK, one, one, 0, 0), EDEADLK);
    CHECK_ERR(ctl(KEYCTL_LINK, one, two, 0, 0), EDEADLK);
    OK(ctl(KEYCTL_LINK, key, SES, 0, 0));
    OK(ctl(KEYCTL_CLEAR, two, 0, 0, 0));
    CHECK_EQ(ctl(KEYCTL_READ, two, 0, 0, 0), 0);
    CHECK_ERR(ctl(KEYCTL_CLEAR, key, 0, 0, 0), ENOTDIR);
    /* Moved, and not over another one. */
    OK(ctl(KEYCTL_MOVE, key, SES, one, 0));
    CHECK_ERR(ctl(KEYCTL_MOVE, key, SES, one, 0), ENOENT);
    user("key", two);
    CHECK_ERR(ctl(KEYCTL_MOVE, key, one, two, KEYCTL_MOVE_EXCL), EEXIST);
    CHECK_ERR(ctl(KEYCTL_MOVE, key, one, two, 2), EINVAL);
    OK(ctl(KEYCTL_MOVE, key, one, two, 0));
    CHECK_EQ(ctl(KEYCTL_READ, two, (long)found, sizeof found, 0), 4);
    CHECK_EQ(found[0], key);
    /* What nobody holds is gone. */
    OK(ctl(KEYCTL_UNLINK, key, two, 0, 0));
    for (int tries = 0; ctl(KEYCTL_DESCRIBE, key, 0, 0, 0) >= 0 && tries < 3000; tries++)
        sleep_ms(10);
    CHECK_ERR(ctl(KEYCTL_DESCRIBE, key, 0, 0, 0), ENOKEY);
}

/* Keyrings are looked through so deep, and no deeper. */
static void nesting(void)
{
    begin();
    key_serial rings[12], key;
    char name[16];
    for (int depth = 0; depth < 12; depth++) {
        snprintf(name, sizeof name, "depth %d", depth);
        rings[depth] = add("keyring", name, NULL, 0, depth == 0 ? SES : rings[depth - 1]);
        /* Who does not find it does not hold it. */
        CHECK_EQ(depth > 7, rings[depth] < 0);
        if (rings[depth] < 0)
            break;
        snprintf(name, sizeof name, "key %d", depth);
        if (depth < 7)
            user(name, rings[depth]);
        else
            CHECK_ERR(add("user", name, "x", 1, rings[depth]), EACCES);
    }
    FD(request("user", "key 5", 0));
    key = FD(add("keyring", "other", NULL, 0, KEY_SPEC_PROCESS_KEYRING));
    CHECK_ERR(ctl(KEYCTL_LINK, rings[0], key, 0, 0), ELOOP);
    OK(ctl(KEYCTL_LINK, rings[5], key, 0, 0));
    /* Far more ways than anybody could go lead through these. */
    begin();
    key_serial level[2][8] = {{0}};
    for (int depth = 0; depth < 6; depth++)
        for (int i = 0; i < 8; i++) {
            snprintf(name, sizeof name, "%d.%d", depth, i);
            level[depth % 2][i] = ring(name, depth == 0 ? SES : level[(depth + 1) % 2][0]);
            for (int j = 1; depth > 0 && j < 8; j++)
                OK(ctl(KEYCTL_LINK, level[depth % 2][i], level[(depth + 1) % 2][j], 0, 0));
        }
    CHECK_ERR(request("user", "nosuch", 0), ENOKEY);
    OK(ctl(KEYCTL_CLEAR, SES, 0, 0, 0));
}

static void ends(void)
{
    begin();
    char text[64];
    key_serial key = user("revoked", SES);
    OK(ctl(KEYCTL_REVOKE, key, 0, 0, 0));
    CHECK_ERR(ctl(KEYCTL_READ, key, (long)text, sizeof text, 0), EKEYREVOKED);
    CHECK_ERR(ctl(KEYCTL_REVOKE, key, 0, 0, 0), EKEYREVOKED);
    CHECK_ERR(ctl(KEYCTL_SEARCH, SES, (long)"user", (long)"revoked", 0), EKEYREVOKED);
    CHECK_ERR(ctl(KEYCTL_DESCRIBE, key, 0, 0, 0), EKEYREVOKED);
    CHECK_ERR(ctl(KEYCTL_SETPERM, key, 0x3f3f0000, 0, 0), EKEYREVOKED);
    /* A new one takes its place. */
    CHECK(user("revoked", SES) != key);
    key = user("invalid", SES);
    OK(ctl(KEYCTL_INVALIDATE, key, 0, 0, 0));
    CHECK_ERR(ctl(KEYCTL_READ, key, (long)text, sizeof text, 0), ENOKEY);
    key = user("expires", SES);
    OK(ctl(KEYCTL_SET_TIMEOUT, key, 1, 0, 0));
    for (int tries = 0; ctl(KEYCTL_READ, key, 0, 0, 0) >= 0 && tries < 3000; tries++)
        sleep_ms(10);
    CHECK_ERR(ctl(KEYCTL_READ, key, 0, 0, 0), EKEYEXPIRED);
    CHECK_ERR(ctl(KEYCTL_SET_TIMEOUT, key, 0, 0, 0), EKEYEXPIRED);
    OK(ctl(KEYCTL_UNLINK, key, SES, 0, 0));
    key = user("expires", SES);
    OK(ctl(KEYCTL_SET_TIMEOUT, key, 1000, 0, 0));
    OK(ctl(KEYCTL_SET_TIMEOUT, key, 0, 0, 0));
    CHECK_EQ(ctl(KEYCTL_READ, key, 0, 0, 0), 6);
    /* A keyring that was revoked takes nothing. */
    key_serial closed = ring("closed", SES);
    OK(ctl(KEYCTL_REVOKE, closed, 0, 0, 0));
    CHECK_ERR(add("user", "x", "x", 1, closed), EKEYREVOKED);
    closed = ring("restricted", SES);
    OK(ctl(KEYCTL_RESTRICT_KEYRING, closed, 0, 0, 0));
    CHECK_ERR(add("user", "x", "x", 1, closed), EPERM);
    CHECK_ERR(ctl(KEYCTL_RESTRICT_KEYRING, closed, 0, 0, 0), EEXIST);
    CHECK_ERR(ctl(KEYCTL_RESTRICT_KEYRING, closed, 0, (long)"x", 0), EINVAL);
    CHECK_ERR(ctl(KEYCTL_RESTRICT_KEYRING, key, 0, 0, 0), ENOTDIR);
}

static void permissions(void)
{
    begin();
    key_serial key = user("key", SES);
    enum { POS = 24, VIEW = 1, READ = 2, WRITE = 4, SEARCH = 8, LINK = 16, SETATTR = 32 };
    OK(ctl(KEYCTL_SETPERM, key, (unsigned long)(SETATTR | VIEW | SEARCH) << POS, 0, 0));
    /* What can be searched for and is held can be read. */
    CHECK_EQ(ctl(KEYCTL_READ, key, 0, 0, 0), 6);
    CHECK_ERR(ctl(KEYCTL_UPDATE, key, (long)"x", 1, 0), EACCES);
    CHECK_ERR(add("user", "key", "x", 1, SES), EACCES);
    CHECK_ERR(ctl(KEYCTL_LINK, key, KEY_SPEC_PROCESS_KEYRING, 0, 0), EACCES);
    OK(ctl(KEYCTL_SETPERM, key, (unsigned long)(SETATTR | READ) << POS, 0, 0));
    CHECK_ERR(ctl(KEYCTL_DESCRIBE, key, 0, 0, 0), EACCES);
    CHECK_ERR(request("user", "key", 0), ENOKEY);
    /* Without the right to search for it nobody holds it. */
    CHECK_ERR(ctl(KEYCTL_READ, key, 0, 0, 0), EACCES);
    OK(ctl(KEYCTL_UNLINK, key, SES, 0, 0));
}

/* What another user can see and do. */
static void other_users(void)
{
    if (geteuid() != 0)
        SKIP("needs root");
    begin();
    key_serial key = user("mine", SES);
    JOIN(CHILD({
        begin();
        OK(setgroups(0, NULL));
        OK(setresgid(1000, 1000, 1000));
        OK(setresuid(1000, 1000, 1000));
        char text[64];
        CHECK_ERR(ctl(KEYCTL_READ, key, (long)text, sizeof text, 0), EACCES);
        CHECK_ERR(ctl(KEYCTL_DESCRIBE, key, (long)text, sizeof text, 0), EACCES);
        CHECK_ERR(ctl(KEYCTL_LINK, key, SES, 0, 0), EACCES);
        CHECK_ERR(ctl(KEYCTL_REVOKE, key, 0, 0, 0), EACCES);
        CHECK_ERR(ctl(KEYCTL_INVALIDATE, key, 0, 0, 0), EACCES);
        CHECK_ERR(ctl(KEYCTL_GET_PERSISTENT, 0, SES, 0, 0), EPERM);
        /* A quota of keys and one of bytes. */
        begin();
        key_serial own = user("own", SES);
        CHECK_ERR(ctl(KEYCTL_CHOWN, own, 0, -1, 0), EACCES);
        CHECK_ERR(ctl(KEYCTL_CHOWN, own, -1, 0, 0), EACCES);
        OK(ctl(KEYCTL_CHOWN, own, 1000, 1000, 0));
        static char payload[20000];
        CHECK_ERR(add("user", "large", payload, sizeof payload, SES), EDQUOT);
        int count = 0;
        char name[16];
        for (; count < 300; count++) {
            snprintf(name, sizeof name, "%d", count);
            if (add("user", name, "x", 1, SES) < 0)
                break;
        }
        CHECK(errno == EDQUOT && count > 100 && count < 200);
        OK(ctl(KEYCTL_CLEAR, SES, 0, 0, 0));
        for (int tries = 0; add("user", "again", "x", 1, SES) < 0 && tries < 3000; tries++)
            sleep_ms(10);
        FD(add("user", "again", "x", 1, SES));
    }));
    /* The group's eight bits, and the others'. */
    OK(ctl(KEYCTL_CHOWN, key, -1, 1000, 0));
    OK(ctl(KEYCTL_SETPERM, key, 0x3f3f0200, 0, 0));
    JOIN(CHILD({
        begin();
        OK(setgroups(0, NULL));
        OK(setresgid(1000, 1000, 1000));
        OK(setresuid(1000, 1000, 1000));
        CHECK_EQ(ctl(KEYCTL_READ, key, 0, 0, 0), 6);
        CHECK_ERR(ctl(KEYCTL_DESCRIBE, key, 0, 0, 0), EACCES);
    }));
}

static void *thread(void *session)
{
    key_serial *serial = session;
    CHECK_EQ(ctl(KEYCTL_GET_KEYRING_ID, SES, 0, 0, 0), *serial);
    /* Its creator has one of these, so it has as well. */
    CHECK(FD(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 0, 0, 0)) != serial[2]);
    serial[1] = FD(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 0, 0, 0));
    user("of the thread", KEY_SPEC_THREAD_KEYRING);
    FD(request("user", "of the thread", 0));
    /* Its session is its own affair. */
    begin();
    return NULL;
}

/* Threads have the process's keyring in common, children the session. */
static void inheritance(void)
{
    begin();
    key_serial serial[3] = {FD(ctl(KEYCTL_GET_KEYRING_ID, SES, 0, 0, 0)), 0, 0};
    key_serial process = FD(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1, 0, 0));
    serial[2] = FD(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 1, 0, 0));
    pthread_t other;
    PT(pthread_create(&other, NULL, thread, serial));
    PT(pthread_join(other, NULL));
    CHECK_EQ(serial[1], process);
    CHECK_EQ(ctl(KEYCTL_GET_KEYRING_ID, SES, 0, 0, 0), serial[0]);
    CHECK_ERR(request("user", "of the thread", 0), ENOKEY);
    JOIN(CHILD({
        CHECK_EQ(ctl(KEYCTL_GET_KEYRING_ID, SES, 0, 0, 0), serial[0]);
        CHECK_ERR(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 0, 0, 0), ENOKEY);
        CHECK_ERR(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 0, 0, 0), ENOKEY);
        user("of the child", SES);
        /* The parent joins a session of the child's. */
        FD(ctl(KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0));
        user("told", SES);
        OK(ctl(KEYCTL_SESSION_TO_PARENT, 0, 0, 0, 0));
    }));
    CHECK(ctl(KEYCTL_GET_KEYRING_ID, SES, 0, 0, 0) != serial[0]);
    FD(request("user", "told", 0));
}

static void named_sessions(void)
{
    char name[32];
    snprintf(name, sizeof name, "session of %d", getpid());
    key_serial one = FD(ctl(KEYCTL_JOIN_SESSION_KEYRING, (long)name, 0, 0, 0));
    /* Others of the user may join it once they may search it. */
    OK(ctl(KEYCTL_SETPERM, one, 0x3f3f0000, 0, 0));
    JOIN(CHILD({
        begin();
        CHECK_EQ(ctl(KEYCTL_JOIN_SESSION_KEYRING, (long)name, 0, 0, 0), one);
    }));
    char text[128];
    snprintf(name, sizeof name, "%08x ", (unsigned)one);
    FILE *file = fopen("/proc/keys", "r");
    CHECK(file != NULL);
    bool listed = false;
    while (fgets(text, sizeof text, file))
        listed |= !strncmp(text, name, 9) && strstr(text, "3f3f0000") && strstr(text, "keyring   session of");
    fclose(file);
    CHECK(listed);
    snprintf(name, sizeof name, "%5d:", geteuid());
    CHECK(number_in("/proc/key-users", name) > 0);
}

static void where_new_ones_go(void)
{
    begin();
    CHECK_EQ(ctl(KEYCTL_SET_REQKEY_KEYRING, -1, 0, 0, 0), 0);
    CHECK_EQ(ctl(KEYCTL_SET_REQKEY_KEYRING, KEY_REQKEY_DEFL_THREAD_KEYRING, 0, 0, 0), 0);
    FD(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_THREAD_KEYRING, 0, 0, 0));
    CHECK_EQ(ctl(KEYCTL_SET_REQKEY_KEYRING, KEY_REQKEY_DEFL_DEFAULT, 0, 0, 0), KEY_REQKEY_DEFL_THREAD_KEYRING);
    CHECK_ERR(ctl(KEYCTL_SET_REQKEY_KEYRING, KEY_REQKEY_DEFL_GROUP_KEYRING, 0, 0, 0), EINVAL);
    CHECK_ERR(ctl(KEYCTL_SET_REQKEY_KEYRING, 100, 0, 0, 0), EINVAL);
    unsigned char can[4] = {9, 9, 9, 9};
    CHECK_EQ(ctl(KEYCTL_CAPABILITIES, (long)can, 4, 0, 0), 2);
    CHECK(can[0] & KEYCTL_CAPS0_CAPABILITIES && can[2] == 0 && can[3] == 0);
    key_serial key = user("key", KEY_SPEC_USER_KEYRING);
    CHECK_ERR(request("user", "key", SES), ENOKEY);
    OK(ctl(KEYCTL_LINK, KEY_SPEC_USER_KEYRING, SES, 0, 0));
    CHECK_EQ(request("user", "key", SES), key);
    OK(ctl(KEYCTL_UNLINK, key, KEY_SPEC_USER_KEYRING, 0, 0));
    char label[4] = "xxx";
    CHECK(ctl(KEYCTL_GET_SECURITY, key, (long)label, sizeof label, 0) >= 1);
}

/* Random calls from several processes at once, among them those that end in the middle. */
static void at_random(void)
{
    begin();
    for (int child = 0; child < 4; child++)
        if (fork() == 0) {
            unsigned seed = 77 + (unsigned)child;
            int64_t end = now_ns(CLOCK_MONOTONIC) + 500000000;
            key_serial known[8] = {SES, KEY_SPEC_PROCESS_KEYRING, KEY_SPEC_THREAD_KEYRING, SES, SES, SES, SES, SES};
            while (now_ns(CLOCK_MONOTONIC) < end) {
                key_serial one = known[rand_r(&seed) % 8], other = known[rand_r(&seed) % 8];
                char name[4] = {(char)('a' + rand_r(&seed) % 4), 0};
                static const int operations[] = {KEYCTL_LINK, KEYCTL_LINK, KEYCTL_UNLINK, KEYCTL_CLEAR, KEYCTL_REVOKE,
                                                 KEYCTL_INVALIDATE, KEYCTL_READ, KEYCTL_CHOWN, KEYCTL_SETPERM, KEYCTL_MOVE};
                int what = rand_r(&seed) % 24;
                if (what < 10)
                    ctl(operations[what], (unsigned long)one, (unsigned long)other, (unsigned long)rand_r(&seed) % 3, 0);
                else if (what < 14)
                    known[rand_r(&seed) % 8] = add("keyring", name, NULL, 0, one);
                else if (what < 18)
                    known[rand_r(&seed) % 8] = add("user", name, name, 1 + (size_t)rand_r(&seed) % 3, one);
                else if (what < 20)
                    request("user", name, other);
                else if (what == 20 && rand_r(&seed) % 8 == 0)
                    begin();
            }
            _exit(0);
        }
    for (int child = 0; child < 4; child++)
        CHECK(wait(NULL) > 0);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(keys_are_added_and_read),
        TEST(what_is_wrong_is_refused),
        TEST(logon_keys),
        TEST(links),
        TEST(nesting),
        TEST(ends),
        TEST(permissions),
        TEST(other_users),
        TEST(inheritance),
        TEST(named_sessions),
        TEST(where_new_ones_go),
        TEST(at_random),
    };
    return RUN_TESTS("keys", tests, argc, argv);
}
