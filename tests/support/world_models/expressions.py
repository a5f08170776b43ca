# ruff: noqa
"""Expressions of numbers, vectors, matrices and tables, each in a program that sums its result."""

FRAME = """
import math
import numpy as np

C = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0], [2.0, 2.0, 2.0]])
I3 = np.array([3, 1, 2])
D = {0: {"a": 1.0, "b": (1, 2)}, 1: {"a": 2.0, "b": (3, 4)}, 2: {"a": 0.5, "b": (0, 9)}}
L = [(0.0, 1.0), (2.0, 3.0), (4.0, -1.0)]
S = ["a", "b", "c"]
T = "abc"
ST = ("abc", "bbb", "cab")


class Environment:
    def set_state(self, o):
        self.o = o

    def fold(self, q):
        if isinstance(q, (list, tuple)):
            q = np.array(q, dtype=float)
        if not isinstance(q, np.ndarray):
            return q * 1.0
        r = 100.0 * len(q.shape) + q.shape[0]
        q = (q * 1.0).flatten()
        for i in range(len(q)):
            r = r * 0.9 + q[i] * (i + 1)
        return r

    def step(self, k):
        a, b = self.o[0], float(self.o[1])
        v, w = self.o[:2], np.array([b, 2.0 * a])
        v, w = np.append(v, a - b), np.append(w, a * b)
        M = np.array([v, w, v - w])
        return [a, b], self.fold(EXPRESSION), False
"""

EXPRESSIONS = """
v.sum()
np.sum(M)
M.sum(axis=0)
M.sum(axis=1)
np.mean(M, axis=-1)
M.max(axis=0)
np.max(v)
M.min()
np.argmax(v)
np.argmin(M, axis=1)
v.argmax()
np.prod(v)
v.std()
np.var(M, axis=0)
M @ v
v @ M
M @ M
v @ w
np.dot(M, v)
M.dot(v)
np.matmul(M, M)
np.dot(v, 2.0)
np.outer(v, w)
np.cross(v, w)
np.inner(v, w)
np.linalg.norm(v)
np.linalg.norm(v - w)
np.linalg.inv(M + 5 * np.eye(3))
np.linalg.det(M)
np.linalg.det(M[:2, :2])
np.linalg.solve(M + 5 * np.eye(3), v)
np.linalg.solve(M[:2, :2] + 5 * np.eye(2), v[:2])
np.linalg.inv(M[:2, :2] + 5 * np.eye(2))
M.T
M.T @ v
M[0]
M[:, 1]
M[1:, :2]
M[..., 0]
M[-1, ::-1]
v[::-1]
v[[0, 2]]
M[[0, 2]]
M[[0, 1], [1, 2]]
v[None] * w[:, None]
v[:, np.newaxis] + w
C[k]
C[k, 1]
C[k][2]
M[k]
M[k, 2]
M[2, k]
M[k, k]
v[k]
v[-1 - k]
v[k - 2]
C[k - 3, 0]
I3[k]
D[k]["a"]
D[k]["b"][1]
L[k][0] + L[k][1]
L[k]
S[k] == "b"
np.concatenate([v, w])
np.concatenate((M, C), axis=0)
np.concatenate((M, C), axis=1)
np.concatenate([M, C], axis=-1)
np.hstack([v, w])
np.hstack([M, C])
np.hstack([k, v])
np.vstack([v, w])
np.vstack([M, v])
np.stack([v, w])
np.stack([v, w], axis=1)
np.stack([v, w], axis=-1)
np.append(v, 3.0)
np.append(v, w)
np.append(M, C, axis=0)
np.array([v, w])
np.array([[a, b], [1.0, k]])
np.array([a, 2, k])
np.array([a > 0, True])
np.array((v, w)).T
M.reshape(-1)
M.reshape(9)
v.reshape(3, 1)
v.reshape((1, -1))
np.reshape(M, (9,))
M.ravel()
M.flatten()
np.squeeze(v.reshape(1, 3))
np.atleast_1d(a)
np.transpose(M)
np.diag(v)
np.diag(M)
np.roll(v, 1)
np.flip(v)
np.cumsum(v)
v.cumsum()
np.diff(v)
np.where(v > w, v, w)
np.where(M > 0, 1, -1)
np.where(a > b, v, w)
np.clip(M, -1, 1)
np.clip(v, [-1, 0, 1], 2.0)
np.clip(v, -w**2 - 1, w**2 + 1)
v.clip(-1, 1)
np.clip(a, b, 3)
np.clip(a, a_min=-1, a_max=None)
np.minimum(v, w)
np.maximum(v, 0)
np.maximum(a, [b, 0.0])
np.abs(M)
np.sign(v)
np.round(M, 2)
np.round(a)
np.floor(v)
np.any(v > 0)
np.all(M > -1)
(M > 0).any(axis=0)
(v > 0).all()
np.any([a > 0, b > 0])
np.sum(v > 0)
np.count_nonzero(v > 0)
np.mean(v > 0)
(v > 0) * w
(v > 0) & (w > 0)
(v > 0)
(w > 0)
~(v > 0)
np.logical_and(v > 0, w > 0)
np.logical_not(v > 0)
np.isfinite(v).all()
np.array_equal(v, w)
np.array_equal(v, v)
np.allclose(v, v + 1e-12)
np.isclose(a, a)
v == w
v != w
M == M.T
np.zeros(3) + a
np.ones((2, 2)) * b
np.full(3, a)
np.full((2, 2), 7)
np.zeros_like(v) + k
np.ones_like(M)
np.full_like(v, b)
np.eye(3) * a
np.arange(3) * a
np.linspace(0, 1, 5) + b
np.interp(a, [0.0, 1.0], [2.0, 3.0])
np.unravel_index(k, (2, 2))
np.ravel_multi_index((k, 1), (3, 4))
np.hypot(a, b)
np.arctan2(v, w)
np.deg2rad(v)
np.square(M)
np.power(v, 2)
np.power(v, 3)
v ** 2
v ** 3
2.0 ** v
M ** 2
v % 2
np.mod(v, 3.0)
np.fmod(v, 3.0)
v // 2
np.floor_divide(v, 2)
divmod(a, 2)
divmod(k, 2)
np.exp(-v**2)
np.sqrt(np.abs(v))
np.log(np.abs(v) + 1)
np.tanh(M)
v.astype(int)
v.astype(np.float32)
np.float32(a)
np.int64(a)
np.bool_(a > 0)
v.tolist()
v.shape
M.shape[0]
v.size
v.ndim
len(M)
M.T.shape
float(v[0])
int(v[1])
bool(v[2] > 0)
max(v)
min(v)
sum(v)
max(v[0], w[0], 0.5)
max([a, b])
min(a, *v)
sorted([3, 1, 2])
[x * 2 for x in v]
[x + y for x, y in zip(v, w)]
[i * x for i, x in enumerate(v)]
list(map(float, v))
tuple(map(abs, v))
any(x > 0 for x in v)
all(x > -1 for x in v)
sum(x for x in v)
sum(x * x for x in v) ** 0.5
[list(r) for r in M]
list(reversed(v))
np.array([x for x in v])
np.copy(v)
v.copy() + 1
np.asarray(v) * 2
np.asarray([a, b])
-v
+v
abs(v)
np.negative(v)
round(a, 2)
round(a)
math.floor(a)
math.ceil(b)
math.trunc(a)
math.hypot(a, b)
math.atan2(a, b)
math.copysign(a, b)
math.degrees(a)
math.isclose(a, b)
math.exp(-a * a)
math.pow(a, 2)
math.fabs(a)
math.dist([a, b], [0.0, 1.0])
math.fmod(a, 1.5)
math.log(a * a + 1)
math.log(a * a + 1, 2)
math.log10(a * a + 1)
math.sqrt(a * a)
isinstance(v, np.ndarray)
isinstance(a, float)
isinstance(k, (int, np.integer))
hasattr(v, "shape")
hasattr(a, "__len__")
v[0] < w[0] < v[1]
(a, b) == (b, a)
[a, 1] == [a, 1]
a in (b, a)
k in range(2)
k in C[:, 0]
(k, 1) in {(0, 1), (2, 1)}
k in D
L.index((2.0, 3.0))
(0.0, 1.0) in L
L.count((0.0, 1.0))
T[k] == "b"
T[k] in "ab"
ST[k][1] == "b"
ST[k][k] == "b"
np.isnan(v).any()
v.dot(w)
np.add(v, w)
np.subtract(a, b)
np.heaviside(a, 0.5)
np.rint(a)
np.max([a, b])
np.min((a, b), axis=0)
np.mean([a, b, 1.0])
np.ptp(v)
np.sum([v, w], axis=0)
np.sum([v, w], axis=1)
np.linalg.norm([a, b])
np.array([v[0], w[1]]) @ np.array([1.0, 2.0])
M[0] @ M[:, 0]
(v * w).sum() / v.size
v.mean(axis=0)
M.mean(axis=(0, 1))
M.sum(axis=1, keepdims=True)
np.radians(a)
np.array(5.0) + a
np.array([]).size
np.float64(3) * k
""".strip().split("\n")


def program(expression):
    """Return the program of an expression."""
    return FRAME.replace("EXPRESSION", expression)
