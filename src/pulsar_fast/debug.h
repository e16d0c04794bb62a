/* Checks that exist only in the debug build (PULSAR_FAST_DEBUG=1). */
#ifndef PULSAR_FAST_DEBUG_H
#define PULSAR_FAST_DEBUG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if PULSAR_FAST_DEBUG
#define PF_CHECK(condition, message)                                                   \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "pulsar_fast: %s (%s:%d)\n", message, __FILE__, __LINE__); \
            abort();                                                                   \
        }                                                                              \
    } while (0)
#else
#define PF_CHECK(condition, message) ((void)(message))
#endif

/* Memory between pf_poison and pf_unpoison belongs to the pool, which keeps a pointer at its very beginning. Under the
   address sanitizer whoever touches it is caught in the act; else it is found out by what was written. */
static inline void pf_touch(const char *memory) { (void)*(volatile const char *)memory; }

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
static inline void pf_poison(void *memory, size_t size) { ASAN_POISON_MEMORY_REGION(memory, size); }
static inline void pf_unpoison(void *memory, size_t size) { ASAN_UNPOISON_MEMORY_REGION(memory, size); }
#elif PULSAR_FAST_DEBUG
#define PF_POISON 0xDD
static inline void pf_poison(void *memory, size_t size) {
    memset((char *)memory + sizeof(void *), PF_POISON, size - sizeof(void *));
}
static inline void pf_unpoison(void *memory, size_t size) {
    for (size_t i = sizeof(void *); i < size; i++)
        PF_CHECK(((unsigned char *)memory)[i] == PF_POISON, "a released buffer was written to");
}
#else
static inline void pf_poison(void *memory, size_t size) { (void)memory; (void)size; }
static inline void pf_unpoison(void *memory, size_t size) { (void)memory; (void)size; }
#endif

#endif
