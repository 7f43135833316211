"""What run() and its ranks say to each other: messages that prove where they are from."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from dataclasses import dataclass

# A rank finds there where to go, and the key: JSON with `address` (a path, or an address and a
# port) and `key`. It has not Rueda's prefix, as it is no setting.
VARIABLE = "_RUEDA_CALL"

_NONCE_BYTES = 32
_SIZE = struct.Struct("<Q")  # how many bytes come
_MAC_BYTES = 32


class Channel:
    """Messages between two who know a key. As they are unpickled, each is authenticated
    (HMAC-SHA256), by keys of this session and direction and with its number: who can change what is
    on the wire can end the call, but not have anything run. Nothing is encrypted.

    One thread may send while another receives.
    """

    def __init__(self, stream: socket.socket, key: bytes, *, is_rank: bool) -> None:
        """At both ends at once. Raises OSError: the other end is gone."""
        self._stream = stream
        own = secrets.token_bytes(_NONCE_BYTES)
        stream.sendall(own)
        other = self._take(_NONCE_BYTES)
        session = other + own if is_rank else own + other
        keys = [hmac.digest(key, b"to " + end + session, "sha256") for end in (b"run", b"rank")]
        self._sends, self._receives = keys if is_rank else reversed(keys)
        self._sent = self._received = 0

    def send(self, message: bytes) -> None:
        """Raises OSError: the other end is gone."""
        size = _SIZE.pack(len(message))
        proofs = [_mac(self._sends, self._sent + i, part) for i, part in enumerate((size, message))]
        self._sent += 2
        self._stream.sendall(size + b"".join(proofs))
        self._stream.sendall(message)

    def receive(self, bytes_max: int = 2**63 - 1) -> bytearray:
        """Raises OSError: the other end is gone, or what comes is not what it has sent, or has more
        than `bytes_max`."""
        head = self._take(_SIZE.size)
        proofs = [self._take(_MAC_BYTES) for _ in range(2)]
        self._check(head, proofs[0])  # before memory is taken for so much
        (size,) = _SIZE.unpack(head)
        if size > bytes_max:
            raise ConnectionAbortedError(f"a message of {size} bytes; at most {bytes_max}")
        message = self._take(size)
        self._check(message, proofs[1])
        return message

    def _check(self, part: bytearray, proof: bytearray) -> None:
        if not hmac.compare_digest(proof, _mac(self._receives, self._received, part)):
            raise ConnectionAbortedError("a message that does not prove where it is from")
        self._received += 1

    def _take(self, size: int) -> bytearray:
        taken = bytearray(size)
        rest = memoryview(taken)
        while rest:
            count = self._stream.recv_into(rest)
            if count == 0:
                raise ConnectionResetError("the other end is gone")
            rest = rest[count:]
        return taken


def _mac(key: bytes, number: int, message: bytes | bytearray) -> bytes:
    mac = hmac.new(key, struct.pack("<Q", number), "sha256")
    mac.update(message)
    return mac.digest()


@dataclass(frozen=True)
class Failure:
    """Why a rank has no result, as it says itself."""

    text: str  # "ValueError: no such file"
    traceback: str
    exception: bytes | None  # pickled, if it can be
    # What it says happened to another rank:
    is_consequence: bool
    lost_rank: int | None  # which, if that is known
    cause: str  # how: "killed by signal 9 (SIGKILL)"
