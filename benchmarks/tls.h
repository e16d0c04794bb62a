/* The server's side of TLS for the stand-in, with a certificate that it makes for itself. */
#ifndef TLS_H
#define TLS_H

#include <errno.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

enum { TLS_READ_AHEAD = 1 << 18 };

static inline SSL_CTX *new_tls_context(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600);
    X509_set_pubkey(certificate, key);
    if (!X509_sign(certificate, key, EVP_sha256()) || SSL_CTX_use_certificate(context, certificate) != 1 ||
        SSL_CTX_use_PrivateKey(context, key) != 1) {
        fputs("no TLS context\n", stderr);
        exit(1);
    }
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, TLS_READ_AHEAD);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return context;
}

static inline SSL *new_tls(SSL_CTX *context, int fd)
{
    SSL *tls = SSL_new(context);
    SSL_set_fd(tls, fd);
    SSL_set_accept_state(tls);
    return tls;
}

/* As the system call would have it. */
static inline ssize_t tls_outcome(SSL *tls, int result)
{
    switch (SSL_get_error(tls, result)) {
    case SSL_ERROR_NONE:
        return result;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    default:
        errno = EPROTO;
        return -1;
    }
}

/* What has come, until there is no more or no more room: nothing would wake us for what TLS holds already. */
static inline ssize_t tls_read(SSL *tls, void *into, size_t size)
{
    size_t filled = 0;
    while (filled < size) {
        ssize_t some = tls_outcome(tls, SSL_read(tls, (char *)into + filled, (int)(size - filled)));
        if (some <= 0)
            return filled ? (ssize_t)filled : some;
        filled += (size_t)some;
    }
    return (ssize_t)filled;
}

static inline ssize_t tls_write(SSL *tls, const void *from, size_t size)
{
    return tls_outcome(tls, SSL_write(tls, from, (int)size));
}

#endif
