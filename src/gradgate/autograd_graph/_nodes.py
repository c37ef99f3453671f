"""The names of autograd's nodes: the only table of them. Other files use its names and sets, and build no name.

A node is named after its operation and a number, such as ``AddBackward0`` for the sum of two tensors and
``AddBackward1`` for the sum of a tensor and a number.
"""

from __future__ import annotations


def _name(operation: str, number: int = 0) -> str:
    return f"{operation}Backward{number}"


def _names(operations: str, numbers: str = "0") -> frozenset[str]:
    """Return the names of several nodes: ``AddBackward0`` and ``AddBackward1`` for ``("Add", "01")``."""
    return frozenset(f"{operation}Backward{number}" for operation in operations.split() for number in numbers)


# -- nodes that no operation of a tensor makes ----------------------------------------------------------

LEAF = "torch::autograd::AccumulateGrad"
"""Adds gradient to a leaf."""

DDP_SINK = "_DDPSinkBackward"
"""The node to which DistributedDataParallel ties a model's outputs, to find unused parameters."""

REENTRANT_CHECKPOINT = "CheckpointFunctionBackward"
"""A reentrant checkpoint, which hides the operations inside it."""

COMPILED = "CompiledFunctionBackward"
"""A compiled part of the graph."""

MODULE_HOOK = "BackwardHookFunctionBackward"
"""Calls a module's backward hooks."""

# -- single nodes ---------------------------------------------------------------------------------------

ADD = _name("Add")
SUB = _name("Sub")
MUL = _name("Mul")
MUL_NUMBER = _name("Mul", 1)
DIV = _name("Div")
NEG = _name("Neg")
POW = _name("Pow")
ABS = _name("Abs")
EXP = _name("Exp")
SUM = _name("Sum")
SUM_OVER_DIMS = _name("Sum", 1)
MEAN = _name("Mean")
SOFTMAX = _name("Softmax")
LOG_SOFTMAX = _name("LogSoftmax")
LOGSUMEXP = _name("Logsumexp")
SIGMOID = _name("Sigmoid")
NLL_LOSS = _name("NllLoss")
BINARY_CROSS_ENTROPY_OF_LOGITS = _name("BinaryCrossEntropyWithLogits")
MV = _name("Mv")
ADDMM = _name("Addmm")
LINEAR = _name("Linear")
CONVOLUTION = _name("Convolution")
GROUP_NORM = _name("NativeGroupNorm")
LAYER_NORM = _name("NativeLayerNorm")
EMBEDDING = _name("Embedding")
TRANSPOSED = _name("T")
STACK = _name("Stack")
SLICE = _name("Slice")
GATHER = _name("Gather")
INDEX = _name("Index")
EXPAND = _name("Expand")
UNSQUEEZE = _name("Unsqueeze")
MASKED_FILL = _name("MaskedFill")

# -- the same values in another form --------------------------------------------------------------------

VIEWS = _names("View ReshapeAlias UnsafeView")
SQUEEZES = _names("Squeeze", "012")
_COPIES = _names("View ReshapeAlias UnsafeView Squeeze Unsqueeze Clone ToCopy Alias", "012")

RESHAPES = _COPIES | _names("Expand Select", "012")
"""Return unchanged values in another shape, dtype or memory."""

TRANSPOSES = _names("T Transpose", "01")  # 1: in place
PERMUTATIONS = _names("Permute T Transpose")

SAME_VALUES = _COPIES | PERMUTATIONS | TRANSPOSES
"""Return all of their values unchanged, in any order."""

PLAIN_COPIES = _names("Clone Alias View ToCopy")
"""Return unchanged values, usually of the same shape."""

REPEATS = _names("Expand Repeat")

PARTS = _names("Slice Select Index Narrow", "01")
"""Return some of their values."""


WEIGHT_PARTS = _names("T Transpose Permute View Expand ToCopy Index Select IndexSelect Gather Embedding")
"""Views of a weight, and reads of its rows."""


INDICES = _names("Index IndexSelect IndexAdd IndexPut IndexCopy MaskedSelect MaskedScatter", "01") | _names(
    "ScatterAdd ScatterReduce Scatter SparseMm SparseAddmm Sort Topk", "01"
)
"""Take or add up rows that data chooses."""

# -- arithmetic -----------------------------------------------------------------------------------------

SUMS = frozenset({ADD, SUB})
"""Sums of two values."""

SUMS_WITH_NUMBERS = _names("Add Sub", "1")

PRODUCTS = frozenset({MUL, DIV})
"""Products and quotients of two values."""

QUOTIENTS = _names("Div", "01")

SCALINGS = _names("Mul Div Neg", "01")
"""Products and quotients with a value or a number, and negations."""

NEGATIONS = _names("Neg") | _names("Rsub", "1")
WITH_NUMBERS = _names("Clamp Add Sub Mul Div Rsub", "1")
OF_TWO_VALUES = SUMS | PRODUCTS | _names("Rsub Maximum Minimum PreluKernel WeightNormInterface")
POWERS = _names("Pow Abs LinalgVectorNorm")

SQUARES = _names("Pow Mul LinalgVectorNorm Norm", "0123")
"""May square their only operand."""

ELEMENT_FUNCTIONS = (
    _names("Abs Neg Exp Exp2 Expm1 Log Log1P Log2 Log10 Sqrt Rsqrt Reciprocal Pow Erf Erfc Erfinv")
    | _names("Sin Cos Tan Tanh Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Lgamma Digamma")
    | _names("Sigmoid LogSigmoid Logit Relu LeakyRelu Elu Celu Gelu Silu Mish Softplus Threshold")
    | _names("Hardtanh Hardsigmoid Hardswish Softshrink Hardshrink ClampMin ClampMax Clone ToCopy Alias")
)
"""Functions of each element by itself."""

NONLINEAR = _names(
    "Sqrt Rsqrt Pow Reciprocal Exp Expm1 Log Log1P Log2 Log10 Abs Sigmoid LogSigmoid Tanh Softplus Relu "
    "Clamp ClampMin ClampMax",
    "01",
)
"""Nonlinear functions with which a loss continues after a mean."""

IN_ONE_DIRECTION = _names(
    "Mean Sum Add Sub Rsub Neg Mul Div Abs Pow Exp Log Softplus LogSigmoid Sigmoid Tanh Relu LeakyRelu Clamp "
    "ClampMin Minimum Maximum",
    "012",
)
"""Steps of a loss that pushes an output in one direction, whatever the data."""

# -- reductions -----------------------------------------------------------------------------------------

MEAN_OVER_DIMS = _name("Mean", 1)
MEANS = frozenset({MEAN, MEAN_OVER_DIMS})

TOTALS = frozenset({MEAN, SUM})
"""Means and sums of all elements."""

MEANS_AND_SUMS = _names("Mean Sum", "01")
"""Means and sums of all elements, or over some dimensions."""

NORMS = _names("LinalgVectorNorm Std Var") | _names("Norm", "01")
"""Norms and deviations, which aren't linear."""

REDUCTIONS = _names(
    "Mean Sum Norm LinalgVectorNorm Var Std VarMean StdMean Logsumexp Amax Amin Max Min Prod", "012"
)

OVER_DIMENSIONS = (
    _names("Sum Mean Norm LinalgVectorNorm Logsumexp Amax Amin Max Min Var Std")
    | _names("Sum Mean Norm Prod", "1")
    | _names("Cumsum Logcumsumexp Select Split SplitWithSizes Unbind")
)
"""Work along dimensions that the node names, or along all."""

OVER_CLASSES = frozenset({SOFTMAX, LOG_SOFTMAX})

# -- losses ---------------------------------------------------------------------------------------------

ERRORS = _names("MseLoss SmoothL1Loss HuberLoss")
"""Losses of the difference between two values."""

DIFFERENCES = ERRORS | {SUB}

ELEMENTWISE = SUMS | PRODUCTS | ERRORS | _names("Pow Abs Neg")
"""Operations on each element by itself."""

CLASS_LOSSES = _names("NllLoss NllLoss2D")
"""Losses of class scores in dimension 1. A mean divides by the number of targets that aren't ignored, or by the sum
of their weights."""

MARGIN_LOSSES = _names("MultiMarginLoss MultilabelMarginLoss")
"""Losses of class scores in dimension 1. Their mean divides by the number of samples."""

BINARY_CROSS_ENTROPIES = _names("BinaryCrossEntropy BinaryCrossEntropyWithLogits")

ELEMENT_LOSSES = ERRORS | BINARY_CROSS_ENTROPIES | _names("SoftMarginLoss")
"""Losses of single elements. Their mean divides by the number of elements."""

LOSSES = CLASS_LOSSES | MARGIN_LOSSES | ELEMENT_LOSSES
CTC_LOSSES = _names("CtcLoss CudnnCtcLoss", "01")

BEFORE_REDUCTION = (
    ELEMENTWISE
    | TOTALS
    | _names("Where ClampMin Minimum Maximum Sqrt Log Cosh Softplus")
    | _names("Clamp ClampMax", "01")
)
"""Steps of a loss between a difference and its reduction, and the reduction."""

SAVE_THEIR_INPUT = _names("Pow Abs Cosh Mul Minimum Maximum Softplus")


# -- layers ---------------------------------------------------------------------------------------------

MATRIX_PRODUCTS = _names("Mm Bmm")

FACTORS = dict.fromkeys(_names("Mm Bmm Mv"), 0) | dict.fromkeys(_names("Addmm Baddbmm"), 1)
"""Matrix products, with the position of their first factor."""

LAYERS = FACTORS | dict.fromkeys(_names("Linear Convolution"), 0)
"""Operations that multiply an input by a weight, with the position of the input among the operands."""

DISTANCES = _names("Cdist EuclideanDist")
EMBEDDINGS = _names("Embedding EmbeddingBag")
RECURRENT = _names("MkldnnRnnLayer CudnnRnn MiopenRnn")


WITHIN_SAMPLES = (
    _names("AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D")
    | _names("MaxPool2DWithIndices MaxPool3DWithIndices PixelShuffle PixelUnshuffle")
    | _names("UpsampleLinear1D UpsampleBilinear2D UpsampleBicubic2D UpsampleTrilinear3D")
    | _names("UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D")
)
"""Change the sizes of each sample's image."""
