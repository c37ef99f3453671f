"""The graph is the record of a forward pass: one node per operation. A node knows which nodes fed it, and which
tensors its derivative needs. ``backward`` walks the graph from the loss to the leaves and frees these tensors on
the way, so it can walk a graph only once, unless ``retain_graph=True``.

These tensors are most of the memory used in training. They live from the forward pass to the backward pass.
"""

import weakref

import torch


class Kept:
    """A tensor that a graph saves for backward."""

    def __init__(self, tensor):
        self.tensor = tensor


kept = weakref.WeakSet()


def keep(tensor):
    kept.add(box := Kept(tensor))
    return box  # now only the graph holds the box, and the set forgets it when the graph is freed


def kept_bytes():
    return sum(box.tensor.nbytes for box in kept)


def squared_error(weight, x):
    return ((weight * x - 2 * x) ** 2).mean()


def chain(loss):
    """Return the nodes from the loss back to the leaf, always following the first input."""
    node, names = loss.grad_fn, []
    while node is not None:
        names.append(type(node).__name__.removesuffix("Backward0"))
        node = node.next_functions[0][0] if node.next_functions else None
    return names


def main():
    weight = torch.tensor(1.0, requires_grad=True)
    x = torch.ones(1_000_000)
    figures = {}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda box: box.tensor):
        loss = squared_error(weight, x)
        figures["chain"] = chain(loss)
        figures["leaf"] = {"weight": weight.is_leaf, "loss": loss.is_leaf}
        figures["after forward"] = kept_bytes()
        loss.backward(retain_graph=True)
        figures["after backward, retained"] = kept_bytes()
        loss.backward()
        figures["after backward"] = kept_bytes()
        figures["gradient of two backwards"] = weight.grad.item()
        try:
            loss.backward()
        except RuntimeError as error:
            figures["third backward"] = str(error).split(" (")[0]
        with torch.no_grad():
            squared_error(weight, x)
        figures["forward under no_grad"] = kept_bytes()

    print(f"weight: leaf {weight.is_leaf}, grad_fn {weight.grad_fn}")
    print(f"loss:   leaf {loss.is_leaf}, grad_fn {type(loss.grad_fn).__name__}")
    print(" <- ".join(figures["chain"]))
    print("x takes 4 MB. Mul saves x and Pow saves the difference until backward has used them:")
    for when in ("after forward", "after backward, retained", "after backward", "forward under no_grad"):
        print(f"  {when:26}{figures[when] / 1e6:g} MB")
    print(f"Two backward passes through one graph add up: {figures['gradient of two backwards']:g}")
    print(f"A third, after the graph was freed: {figures['third backward']}")
    return figures


if __name__ == "__main__":
    main()
