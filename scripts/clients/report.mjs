// What the JavaScript clients print: a line for each call, with its name and the answer that the client accepted, or
// the client's own error for a call that only a node or a relay can answer.

export const accepted = (name, answer) => console.log(`${name}\t${answer}`);

// The call must fail with an error of the client that names the unknown method. Some clients throw it, others return
// it.
export const unsupported = async (name, call) => {
  const answer = await call().catch((error) => error);
  const error = answer instanceof Error ? answer : answer?.error;
  if (!error?.message?.includes("does not exist")) {
    throw new Error(`${name}: ${error?.message ?? answer}`);
  }
  console.log(`${name}\terror: ${error.shortMessage ?? error.code ?? error.name}`);
};

export const transaction = (nonce) => ({
  chainId: 1337,
  nonce,
  maxFeePerGas: 2_000_000_000n,
  maxPriorityFeePerGas: 1_000_000_000n,
  to: "0x" + "aa".repeat(20),
  value: 1n,
});
