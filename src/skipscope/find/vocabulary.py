"""What an operation is to a residual path: one table, keyed by the operation's plain name.

Autograd calls a node `NativeLayerNormBackward0`, a torch function is called `layer_norm`; both are
brought to one spelling (`nativelayernorm`, `layernorm`) and looked up here. No model is named.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache


class Op(Enum):
    """The classes of operation that finding tells apart."""

    TRANSPARENT = "transparent"  # moves or casts elements: an identity shortcut stays one
    TURN = "turn"  # transparent, and another axis becomes the last
    MASK = "mask"  # multiplied by a mask: dropout, stochastic depth, padding
    SLICE = "slice"  # keeps a part
    SCALE = "scale"  # multiplied by a constant or a parameter
    SHIFT = "shift"  # a constant or a parameter added
    CONVOLUTION = "convolution"
    LINEAR = "linear"  # matrix products
    ATTENTION = "attention"  # fused attention and recurrent kernels
    NORM = "norm"
    MOMENT = "moment"  # what norms are written with: pow, rsqrt, var ...
    POOL = "pool"
    PAD = "pad"
    ACTIVATION = "activation"
    MULTIPLY = "multiply"  # two data operands
    ADD = "add"
    CONCATENATE = "concatenate"
    EMBEDDING = "embedding"
    PARAMETER = "parameter"  # a leaf that is trained
    INPUT = "input"  # a leaf that is data
    CUSTOM = "custom"  # an autograd.Function of the user's, a checkpoint, an unknown kernel
    OTHER = "other"

    __hash__ = object.__hash__  # members are single objects; Enum's own hashes the name, in Python


_NAMES: dict[Op, str] = {
    Op.TRANSPARENT: """
        view unsafeview viewas reshape reshapealias reshapeas permute transpose t mt mh h swapaxes
        swapdims movedim clone copy tocopy to type typeas alias expand expandas unsqueeze squeeze
        roll contiguous flatten unflatten asstrided detach float half bfloat16 double cuda cpu
        flip rot90 real viewasreal viewascomplex broadcastto copyslices ravel neg lift liftfresh
        dropout dropout1d dropout2d dropout3d alphadropout featurealphadropout featuredropout
        nativedropout fuseddropout asnestedtensor identity requiresgrad data unsafechunk
        pixelshuffle pixelunshuffle channelshuffle im2col unfold
        fakequantizepertensoraffine fakequantizepertensoraffinecachemask
        fakequantizepertensoraffinecachemasktensorqparams fakequantizeperchannelaffine
        fakequantizeperchannelaffinecachemask fakequantizelearnablepertensoraffine
        fakequantizelearnableperchannelaffine fusedmovingavgobsfakequant
        fusedmovingavgobsfqhelper""",
    Op.MASK: "maskedfill",
    Op.SLICE: """
        slice split splitwithsizes unsafesplit unsafesplitwithsizes chunk tensorsplit select narrow
        unbind index getitem indexselect gather take takealongdim maskedselect diagonal""",
    Op.CONVOLUTION: """
        convolution convolutionoverrideable conv1d conv2d conv3d convtranspose1d convtranspose2d
        convtranspose3d convtbc mkldnnconvolution cudnnconvolution cudnnconvolutiontranspose
        thnnconv2d slowconv2d slowconv3d slowconvdilated2d slowconvdilated3d slowconvtranspose2d
        slowconvtranspose3d miopenconvolution miopendepthwiseconvolution convdepthwise3d fold
        convdepthwise2d mpsconvolution xnnpackconv2d""",
    Op.LINEAR: """
        addmm mm bmm baddbmm addbmm linear matmul rmatmul mv addmv dot vdot inner outer ger einsum
        tensordot bilinear mkldnnlinear mpslinear groupedmm scaledmm scaledgroupedmm kron trilinear
        sparseaddmm sparsemm fftr2c fftc2c fftc2r fft ifft rfft irfft fft2 ifft2 fftn ifftn
        rfft2 irfft2 rfftn irfftn fftfft fftfft2 fftfftn""",
    Op.NORM: """
        nativelayernorm layernorm nativebatchnorm batchnorm cudnnbatchnorm miopenbatchnorm
        nativegroupnorm groupnorm instancenorm rmsnorm fusedrmsnorm localresponsenorm normalize
        batchnormupdatestats syncbatchnorm batchnormwithupdate""",
    Op.MOMENT: """
        pow square rsqrt sqrt var varmean std stdmean linalgvectornorm norm rdiv reciprocal""",
    Op.POOL: """
        avgpool1d avgpool2d avgpool3d maxpool1d maxpool2d maxpool3d maxpool2dwithindices
        maxpool3dwithindices adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d
        adaptivemaxpool1d adaptivemaxpool2d adaptivemaxpool3d lppool2d mean sum amax amin max min
        maxpool1dwithindices mkldnnmaxpool2d mkldnnadaptiveavgpool2d upsamplenearest1d
        upsamplenearest2d upsamplenearest3d upsamplebilinear2d upsamplebicubic2d upsamplelinear1d
        upsampletrilinear3d upsamplenearestexact1d upsamplenearestexact2d upsamplenearestexact3d
        upsamplebilinear2daa interpolate upsample repeat repeatinterleave gridsampler gridsample
        gridsampler2d affinegridgenerator segmentreduce logsumexp median
        fractionalmaxpool2d""",
    Op.PAD: """
        constantpadnd pad reflectionpad1d reflectionpad2d reflectionpad3d replicationpad1d
        replicationpad2d replicationpad3d circularpad""",
    Op.ACTIVATION: """
        relu relu6 gelu silu sigmoid tanh softmax logsoftmax leakyrelu elu celu selu hardtanh
        hardswish hardsigmoid hardshrink softshrink softplus softsign mish threshold prelu
        preluKernel clamp clampmin clampmax maximum minimum glu logsigmoid rrelu rreluwithnoise
        exp expm1 erf erfc sin cos abs log log1p safesoftmax gumbelsoftmax where
        softmin tanhshrink sgn sign atan sinh cosh swish""",
    Op.MULTIPLY: "mul rmul multiply div rdiv truediv divide truedivide rtruediv",
    Op.ADD: "add radd iadd sub rsub subtract isub addcmul addcdiv lerp",
    Op.CONCATENATE: "cat concat concatenate stack hstack vstack dstack",
    Op.EMBEDDING: "embedding embeddingbag",
}
_TABLE = {
    name.lower(): op for op, names in reversed(_NAMES.items()) for name in names.split()
}  # reversed: where a name stands twice, the first class counts
_FUSED_KERNELS = re.compile(r"attention|flash|rnn|lstm|^gru|ctcloss|scan")

#: Operations that hold weights or mix elements as a matrix does: what makes a path a branch.
PARAMETRIC = frozenset({Op.CONVOLUTION, Op.LINEAR, Op.ATTENTION, Op.NORM, Op.CUSTOM})
#: Operations with a weight matrix or kernel proper.
MATRIX = frozenset({Op.CONVOLUTION, Op.LINEAR, Op.ATTENTION, Op.CUSTOM})
#: Operations that make a shortcut a projection.
PROJECTION = frozenset({Op.CONVOLUTION, Op.LINEAR, Op.NORM, Op.POOL, Op.PAD, Op.ACTIVATION})
#: Operations that are not linear in their data; a norm counts as linear here.
NONLINEAR = frozenset({Op.ACTIVATION, Op.ATTENTION, Op.CUSTOM, Op.MULTIPLY})
#: Operations that pass the elements on.
PASSES = frozenset({Op.TRANSPARENT, Op.TURN, Op.MASK, Op.SHIFT})


@cache
def plain(name: str) -> str:
    """One spelling for autograd nodes and torch functions.

    >>> plain("NativeLayerNormBackward0"), plain("layer_norm"), plain("__iadd__")
    ('nativelayernorm', 'layernorm', 'iadd')
    """
    return re.sub(r"backward\d*$", "", name.rsplit(".", 1)[-1].lower().replace("_", ""))


@cache
def classify(name: str) -> Op:
    """The class of the operation that a node or function of this name performs.

    >>> classify("AddmmBackward0").value, classify("MyFusedBlockBackward").value
    ('linear', 'custom')
    """
    if name == "AccumulateGrad":
        return Op.PARAMETER
    key = plain(name)
    if key in _TABLE:
        return _TABLE[key]
    if _FUSED_KERNELS.search(key):
        return Op.ATTENTION
    # Autograd numbers its own nodes (`XBackward0`); a user's Function is `XBackward`, no number.
    return Op.CUSTOM if name.endswith("Backward") else Op.OTHER


@cache
def makes_anew(name: str) -> bool:
    """Whether a function takes a tensor for its shape only.

    >>> makes_anew("new_zeros"), makes_anew("randn_like"), makes_anew("relu")
    (True, True, False)
    """
    return name.startswith("new_") or name.endswith("_like") or name == "grad"


@cache
def takes_form(name: str) -> bool:
    """Whether a function's further operands lend their shape or dtype only.

    >>> takes_form("type_as"), takes_form("expand_as"), takes_form("to"), takes_form("copy_")
    (True, True, True, False)
    """
    return name == "to" or name.endswith("_as")
