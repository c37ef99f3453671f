from tests.messages import TEXTS, messages, of_ranks

if __name__ == "__main__":
    found = {name: find() for name, find in messages().items()} | of_ranks()
    TEXTS.write_text(
        "\n\n".join(f"# {name}\n{each.kind}: {each.text}" for name, each in found.items()) + "\n", "utf-8"
    )
