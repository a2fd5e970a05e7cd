"""Beats once a second and counts its beats in the state. The next term continues the count, on whichever node it runs.

With the setting `URL`, each beat also fetches JSON from there.
"""


def run(host) -> None:
    url = host.settings.get("URL")
    beats = host.get("beats") or 0
    host.log(f"term {host.term} continues from beat {beats}")
    # The sleep ends early, with False, when the host asks this instance to stop.
    while host.sleep(1):
        beats += 1
        changes = {"beats": beats}
        if url:
            changes["answer"] = host.fetch(url).json()
            host.log(f"{url} answers {changes['answer']}")
        host.put(changes)
        host.log(f"beat {beats}")
        host.progress()
