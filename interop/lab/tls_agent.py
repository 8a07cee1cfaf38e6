#!/usr/bin/env python3
"""A handshake agent for NVMe over TLS, in place of tlshd, which Debian 12 lacks.

    tls_agent.py KEY HOSTNQN SUBSYSNQN

It derives the PSK of the two names from a key of 32 bytes (NVMeTLSkey-1:01:...:), and puts it into the keyring .nvme of the
kernel. Then it prints "ready", and makes each handshake that the kernel asks for, as a client with GnuTLS. The kernel encrypts
the data that follow (kernel TLS). It uses no code of Lunar.
"""

import base64
import ctypes
import hmac
import os
import re
import socket
import struct
import sys

ADD_KEY = 248  # system call of x86-64
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NETLINK_GENERIC = 270, 1, 16
GENL_CONTROLLER, GETFAMILY = 16, 3
HANDSHAKE_READY, HANDSHAKE_ACCEPT, HANDSHAKE_DONE = 1, 2, 3
HANDLER_TLSHD = 1
NLMSG_ERROR, NLM_REQUEST, NLM_ACK = 2, 1, 4
TCP_ULP, SOL_TLS, TLS_TX, TLS_RX = 31, 282, 1, 2
TLS_1_3, AES_GCM_128 = 0x0304, 51
GNUTLS_CLIENT, GNUTLS_CRD_PSK = 2, 4
PRIORITY = b"NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:-CIPHER-ALL:+AES-128-GCM:%NO_TICKETS"
TIMEOUT_MS = 10000
EIO = 5


def log(*words):
    print(*words, flush=True)


# ---------------------------------------------------------------- PSK


def expand(key, label, context):
    """HKDF-Extract, then HKDF-Expand-Label of TLS 1.3, with SHA-256."""
    pseudorandom = hmac.digest(bytes(32), key, "sha256")
    label = b"tls13 " + label
    info = struct.pack(">HB", 32, len(label)) + label + bytes([len(context)]) + context + b"\1"
    return hmac.digest(pseudorandom, info, "sha256")


def psk(text, host, subsystem):
    """The identity of version 0, and its PSK."""
    form, kind, encoded, _ = text.strip().split(":")
    assert (form, kind) == ("NVMeTLSkey-1", "01"), "a key for SHA-256"
    retained = expand(base64.b64decode(encoded)[:-4], b"HostNQN", host.encode())
    identity = f"NVMe0R01 {host} {subsystem}".encode()
    return identity, expand(retained, b"nvme-tls-psk", identity)


def add_key(identity, secret):
    """Puts a PSK into the keyring of the kernel. Returns its serial number."""
    with open("/proc/keys", encoding="utf-8") as keys:
        found = re.search(r"^([0-9a-f]+) .*keyring +\.nvme\b", keys.read(), re.M)
    ring = ctypes.c_int32(int(found[1], 16)).value
    libc = ctypes.CDLL(None, use_errno=True)
    serial = libc.syscall(ctypes.c_long(ADD_KEY), b"psk", identity, secret, ctypes.c_size_t(len(secret)), ring)
    if serial < 0:
        raise OSError(ctypes.get_errno(), "add_key")
    return serial


# ---------------------------------------------------------------- netlink


def attribute(kind, data):
    return struct.pack("HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]


class Netlink:
    """The family "handshake" of generic netlink."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        self.socket.bind((0, 0))
        self.sequence, self.notifications = 0, []
        family = dict(attributes(self.ask(GENL_CONTROLLER, GETFAMILY, attribute(2, b"handshake\0"))))
        self.family = struct.unpack("H", family[1])[0]
        for _, group in attributes(family[7]):
            group = dict(attributes(group))
            if group[1] == b"tlshd\0":
                number = struct.unpack("I", group[2])[0]
                self.socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, number)

    def ask(self, family, command, body, flags=NLM_REQUEST):
        self.sequence += 1
        head = struct.pack("IHHII", 20 + len(body), family, flags, self.sequence, 0)
        self.socket.send(head + struct.pack("BBH", command, 1, 0) + body)
        while True:
            message = self.socket.recv(1 << 16)
            length, kind, _, sequence, _ = struct.unpack_from("IHHII", message)
            if sequence != self.sequence:
                self.notifications.append(message)
            elif kind == NLMSG_ERROR:
                error = -struct.unpack_from("i", message, 16)[0]
                if error:
                    raise OSError(error, os.strerror(error))
                return b""
            else:
                return message[20:length]

    def wait(self):
        """Waits until the kernel asks for a handshake."""
        while True:
            message = self.notifications.pop(0) if self.notifications else self.socket.recv(1 << 16)
            if struct.unpack_from("IHHII", message)[1] == self.family and message[16] == HANDSHAKE_READY:
                return

    def accept(self):
        """The socket of the next handshake."""
        body = attribute(2, struct.pack("I", HANDLER_TLSHD))
        found = dict(attributes(self.ask(self.family, HANDSHAKE_ACCEPT, body)))
        return struct.unpack("i", found[1])[0]

    def done(self, fd, status, serial):
        body = attribute(1, struct.pack("I", status)) + attribute(2, struct.pack("i", fd))
        if status == 0:
            body += attribute(3, struct.pack("I", serial & 0xFFFFFFFF))
        self.ask(self.family, HANDSHAKE_DONE, body, NLM_REQUEST | NLM_ACK)


# ---------------------------------------------------------------- TLS


class Datum(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_uint)]

    def bytes(self):
        return ctypes.string_at(self.data, self.size)


def datum(data):
    made = Datum(None, len(data))
    # The buffer lives as long as the datum.
    made.buffer = ctypes.create_string_buffer(data, len(data))
    made.data = ctypes.cast(made.buffer, ctypes.c_void_p)
    return made


class GnuTls:
    def __init__(self, identity, secret):
        self.lib = ctypes.CDLL("libgnutls.so.30")
        self.lib.gnutls_strerror.restype = ctypes.c_char_p
        self.credentials = ctypes.c_void_p()
        self.check(self.lib.gnutls_psk_allocate_client_credentials(ctypes.byref(self.credentials)))
        name, key = datum(identity), datum(secret)
        set_key = self.lib.gnutls_psk_set_client_credentials2
        self.check(set_key(self.credentials, ctypes.byref(name), ctypes.byref(key), 0))

    def check(self, result):
        if result < 0:
            raise RuntimeError(self.lib.gnutls_strerror(result).decode())

    def handshake(self, fd):
        """Makes the handshake on a connected socket, and leaves the encryption to the kernel."""
        os.set_blocking(fd, True)
        session = ctypes.c_void_p()
        self.check(self.lib.gnutls_init(ctypes.byref(session), GNUTLS_CLIENT))
        self.check(self.lib.gnutls_priority_set_direct(session, PRIORITY, None))
        self.check(self.lib.gnutls_credentials_set(session, GNUTLS_CRD_PSK, self.credentials))
        self.lib.gnutls_transport_set_int2(session, fd, fd)
        self.lib.gnutls_handshake_set_timeout(session, TIMEOUT_MS)
        result = -1
        while result < 0:
            result = self.lib.gnutls_handshake(session)
            if result < 0 and self.lib.gnutls_error_is_fatal(result):
                self.check(result)
        self.enter_kernel(session, fd)

    def enter_kernel(self, session, fd):
        with socket.socket(fileno=os.dup(fd)) as tcp:
            tcp.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
            for is_read, option in ((0, TLS_TX), (1, TLS_RX)):
                mac, iv, key, number = Datum(), Datum(), Datum(), ctypes.create_string_buffer(8)
                parts = [ctypes.byref(part) for part in (mac, iv, key)]
                self.check(self.lib.gnutls_record_get_state(session, is_read, *parts, number))
                iv = iv.bytes()
                state = struct.pack("HH", TLS_1_3, AES_GCM_128) + iv[4:12] + key.bytes() + iv[:4] + number.raw
                tcp.setsockopt(SOL_TLS, option, state)


def main():
    identity, secret = psk(*sys.argv[1:4])
    serial, tls, netlink = add_key(identity, secret), GnuTls(identity, secret), Netlink()
    log("ready", identity.decode())
    while True:
        netlink.wait()
        try:
            fd = netlink.accept()
        except OSError as e:
            log("no handshake waits:", e)
            continue
        status = 0
        try:
            tls.handshake(fd)
            log("handshake done")
        except (OSError, RuntimeError) as e:
            log("handshake failed:", e)
            status = EIO
        try:
            netlink.done(fd, status, serial)
        except OSError as e:
            log("the kernel does not wait any more:", e)
        os.close(fd)


main()
