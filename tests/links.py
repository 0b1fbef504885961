"""Links of Markdown pages to what lies beside them."""
import os
import re


def broken(text, folder):
    """Of a page in a folder: the files that it leads to and that are not there."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return [link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
            if not os.path.exists(os.path.join(folder, link))]


def broken_below(top):
    """The same of all pages below a folder."""
    wrong, pages = [], 0
    for folder, _, names in os.walk(top):
        for name in names:
            if name.endswith(".md"):
                pages += 1
                with open(os.path.join(folder, name)) as f:
                    wrong += [f"{folder}/{name}: {link}" for link in broken(f.read(), folder)]
    return wrong if pages else [f"no pages below {top}"]
