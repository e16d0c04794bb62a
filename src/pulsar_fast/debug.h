/* Checks that exist only in the debug build (PULSAR_FAST_DEBUG=1). */
#ifndef PULSAR_FAST_DEBUG_H
#define PULSAR_FAST_DEBUG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PF_POISON 0xDD

#if PULSAR_FAST_DEBUG
#define PF_CHECK(condition, message)                                                   \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "pulsar_fast: %s (%s:%d)\n", message, __FILE__, __LINE__); \
            abort();                                                                   \
        }                                                                              \
    } while (0)
static inline void pf_poison(void *bytes, size_t size) { memset(bytes, PF_POISON, size); }
static inline void pf_check_poison(const unsigned char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        PF_CHECK(bytes[i] == PF_POISON, "a released buffer was written to");
}
#else
#define PF_CHECK(condition, message) ((void)(message))
static inline void pf_poison(void *bytes, size_t size) { (void)bytes; (void)size; }
static inline void pf_check_poison(const unsigned char *bytes, size_t size) { (void)bytes; (void)size; }
#endif

#endif
