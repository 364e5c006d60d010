"""An MCP client that starts the memory's server, stores a fact and asks for it.

pip install "rsm-fast[mcp,minilm]"
python docs/examples/mcp_client.py agent.rsm
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp import Client, StdioServerParameters


async def call(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool; its text."""
    result = await client.call_tool(tool, arguments)
    text = "\n".join(getattr(part, "text", "") for part in result.content)
    if result.is_error:
        raise RuntimeError(f"{tool}: {text}")
    return text


async def talk(store: str) -> None:
    """What an agent would do over its life, in short."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "rsm_fast.cli", "mcp", "--store", store]
    )
    async with Client(server) as client:
        tools = await client.list_tools()
        sys.stdout.write(f"tools: {', '.join(tool.name for tool in tools.tools)}\n")
        fact = "The boat to Trondheim leaves on 7 September at 20:30."
        await call(client, "remember", text=fact, session="trip")
        question = "When does the boat leave?"
        sys.stdout.write(await call(client, "recall", query=question, budget=200) + "\n")


def main(arguments: list[str]) -> int:
    """Run against the store that is named."""
    if len(arguments) != 1:
        sys.stderr.write(__doc__ or "")
        return 2
    asyncio.run(talk(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
