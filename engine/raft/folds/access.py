"""Access: tokens, known by the hash of their secret, and what each permits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from immutables import Map

from dq.engine.raft.changes import PermissionsGranted, PermissionsRevoked, TokenGranted, TokenRevoked
from dq.engine.raft.folds.plain import sorted_pairs, to_map
from dq.engine.raft.refusals import Taken, UnknownToken

if TYPE_CHECKING:
    from dq.engine.raft.folds.rules import Rules
    from dq.engine.raft.image import Image


@dataclass(frozen=True, slots=True)
class TokenImage:
    token_id: str
    secret_hash: bytes
    permissions: Map[str, tuple[str, ...]]  # role -> topics or prefixes with *, sorted
    description: str
    expires: int | None
    granted: int  # when

    def to_plain(self) -> list[Any]:
        return [
            self.token_id,
            self.secret_hash,
            sorted_pairs(self.permissions),
            self.description,
            self.expires,
            self.granted,
        ]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> TokenImage:
        token_id, secret_hash, permissions, description, expires, granted = plain
        made = to_map({role: tuple(topics) for role, topics in permissions})
        return cls(token_id, secret_hash, made, description, expires, granted)


def _permissions(pairs: Iterable[tuple[str, set[str]]]) -> Map[str, tuple[str, ...]]:
    return to_map({role: tuple(sorted(topics)) for role, topics in pairs if topics})


def _token(image: Image, token_id: str) -> TokenImage:
    token = image.tokens.get(token_id)
    if token is None:
        raise UnknownToken(token_id)
    return token


def grant(image: Image, change: TokenGranted, time: int) -> Image:
    if change.token_id in image.tokens:
        raise Taken(f"token {change.token_id!r}")
    if change.secret_hash in image.token_ids:
        raise Taken("a token with this secret")
    token = TokenImage(
        token_id=change.token_id,
        secret_hash=change.secret_hash,
        permissions=_permissions((role, set(topics)) for role, topics in change.permissions.items()),
        description=change.description,
        expires=change.expires,
        granted=time,
    )
    return replace(
        image,
        tokens=image.tokens.set(change.token_id, token),
        token_ids=image.token_ids.set(change.secret_hash, change.token_id),
    )


def revoke(image: Image, change: TokenRevoked, time: int) -> Image:
    token = _token(image, change.token_id)
    return replace(
        image,
        tokens=image.tokens.delete(change.token_id),
        token_ids=image.token_ids.delete(token.secret_hash),
    )


def grant_permissions(image: Image, change: PermissionsGranted, time: int) -> Image:
    token = _token(image, change.token_id)
    roles = {*token.permissions, *change.permissions}
    merged = ((role, _topics(token.permissions, role) | _topics(change.permissions, role)) for role in roles)
    return _with_permissions(image, token, _permissions(merged))


def revoke_permissions(image: Image, change: PermissionsRevoked, time: int) -> Image:
    token = _token(image, change.token_id)
    left = ((role, set(topics) - _topics(change.permissions, role)) for role, topics in token.permissions.items())
    return _with_permissions(image, token, _permissions(left))


def _topics(permissions: Mapping[str, tuple[str, ...]], role: str) -> set[str]:
    return set(permissions.get(role, ()))


def _with_permissions(image: Image, token: TokenImage, permissions: Map[str, tuple[str, ...]]) -> Image:
    return replace(image, tokens=image.tokens.set(token.token_id, replace(token, permissions=permissions)))


RULES: Rules = {
    TokenGranted: grant,
    TokenRevoked: revoke,
    PermissionsGranted: grant_permissions,
    PermissionsRevoked: revoke_permissions,
}
