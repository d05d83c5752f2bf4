"""Implicit differentiation: solutions of equations, which differentiate without their computation.

Where `f(x, p) = 0` defines `x` as a function of `p`, its derivative solves one linear system with the Jacobian of `f`:

1. Forward, `f_x dx = -f_p dp`; in reverse, `f_x^T w = t`, and the cotangent of `p` is `-f_p^T w`. Both are computed
   with operations that the layers below see, at the solution as they know it, so that every order of derivative exists.
2. A solver runs on plain values, with all layers that wrap values suspended: it may branch on numbers, stop at a
   tolerance, call SciPy. Layers that rewrite, observe or choose a device reach what `f` computes inside of it.
3. The parameters are the further arguments of `f` and whatever it closes over, of any layer that is active.
4. In a trace the solution is one equation: a replay runs the solver, and `f`, again.
5. In a batch `root` solves lane by lane; `fixed_point` iterates on all lanes, and leaves those that are done alone.

The theorem is Dini's; see S. Krantz and H. Parks, "The Implicit Function Theorem", 2003.
"""

from xform.implicit.solutions import *
