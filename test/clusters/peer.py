"""Rueda's control protocol, as docs/internals/protocol.md tells it and written from that alone: an honest peer, and what others
may send in its place."""
import hashlib
import hmac
import os
import socket
import struct

MAGIC = b"RUEDA\0\0\2"
HELLO, REPLY, FINISH, HEADER, MAC = 56, 72, 32, 40, 32
KIND_REFUSED = 14
LIMIT = 30  # seconds


class Scope:
    def __init__(self, secret, job, membership=1):
        self.secret, self.job, self.membership = secret, job.encode(), membership


def hello(scope, client, server, nonce):
    return MAGIC + struct.pack("<Qii", scope.membership, client, server) + nonce


def transcript(scope, client, server, client_nonce, server_nonce):
    return (struct.pack("<I", len(scope.job)) + scope.job + struct.pack("<Qii", scope.membership, client, server) +
            client_nonce + server_nonce)


def mac_of(key, message):
    """Keyed BLAKE2b (RFC 7693) of 32 bytes."""
    key = hashlib.blake2b(key).digest() if len(key) > 64 else key
    return hashlib.blake2b(message, key=key, digest_size=MAC).digest()


def proof(scope, who, *of):
    return mac_of(scope.secret, who + transcript(scope, *of))


def session_key(scope, label, *of):
    return mac_of(scope.secret, label + transcript(scope, *of))


def connect(address, source=None, timeout=LIMIT):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout, (source, 0) if source else None)


def receive(sock, count):
    """That many bytes, or those that came before the end."""
    data = b""
    try:
        while len(data) < count:
            more = sock.recv(count - len(data))
            if not more:
                break
            data += more
    except ConnectionError:
        pass
    return data


class Client:
    """Says hello as rank `rank` to rank `server`; then prove() and what follows."""

    def __init__(self, address, scope, rank, server=0, source=None, change_hello=lambda data: data):
        self.scope, self.nonce = scope, os.urandom(32)
        self.rank, self.server = rank, server
        self.socket = connect(address, source)
        self.socket.sendall(change_hello(hello(scope, rank, server, self.nonce)))
        self.reply = receive(self.socket, REPLY)

    def greeted(self):
        return len(self.reply) == REPLY

    def of(self):
        return self.rank, self.server, self.nonce, self.reply[8:40]

    def server_is_honest(self):
        return self.greeted() and hmac.compare_digest(proof(self.scope, b"S", *self.of()), self.reply[40:])

    def finish(self):
        return proof(self.scope, b"C", *self.of())

    def prove(self, change=lambda data: data):
        try:
            self.socket.sendall(change(self.finish()))
        except ConnectionError:
            pass
        return self

    def read_frame(self):
        """Type and payload of the first frame; None: the connection ended."""
        header = receive(self.socket, HEADER)
        if len(header) < HEADER:
            return None
        magic, _, kind, _, membership, source, destination, sequence, length, _ = struct.unpack("<4sBBHQiiQII", header)
        assert (magic, membership, source, destination, sequence) == (b"RUED", self.scope.membership, self.server, self.rank, 0)
        payload, mac = receive(self.socket, length), receive(self.socket, MAC)
        key = session_key(self.scope, b"rueda server to client", *self.of())
        assert hmac.compare_digest(mac_of(key, header + payload), mac)
        return kind, payload

    def close(self):
        self.socket.close()


def flip(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
