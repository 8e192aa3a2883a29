// Calls the RPC server with @flashbots/ethers-provider-bundle of npm. Usage: node provider-bundle.mjs URL BLOCK

import { randomUUID } from "node:crypto";
import { FlashbotsBundleProvider } from "@flashbots/ethers-provider-bundle";
import { JsonRpcProvider, Wallet, keccak256 } from "ethers";
import { accepted, transaction, unsupported } from "./report.mjs";

const [url, number] = process.argv.slice(2);
const block = Number(number);
const provider = new JsonRpcProvider(url);
const sender = Wallet.createRandom();
// It asks the provider for the chain id.
const flashbots = await FlashbotsBundleProvider.create(provider, Wallet.createRandom(), url);

const signed = (nonce) => sender.signTransaction({ ...transaction(nonce), gasLimit: 21000, type: 2 });
// This client returns an error instead of throwing it.
const checked = (answer) => {
  if (answer !== null && typeof answer === "object" && "error" in answer) {
    throw new Error(JSON.stringify(answer.error));
  }
  return answer;
};

const uuid = randomUUID();
for (const [name, nonce] of [["send bundle", 0], ["replace bundle", 1]]) {
  const transactions = [{ signedTransaction: await signed(nonce) }];
  const sent = checked(await flashbots.sendBundle(transactions, block, { replacementUuid: uuid }));
  accepted(name, sent.bundleHash);
}
checked(await flashbots.cancelBundles(uuid));
accepted("cancel bundle", "ok");
const bundle = [await signed(0)];
const sent = checked(await flashbots.sendRawBundle(bundle, block));
accepted("send raw bundle", sent.bundleHash);
await unsupported("simulate", () => flashbots.simulate(bundle, block));
await unsupported("bundle stats", () => flashbots.getBundleStats(sent.bundleHash, block));
await unsupported("bundle stats v2", () => flashbots.getBundleStatsV2(sent.bundleHash, block));
await unsupported("user stats", () => flashbots.getUserStats());
await unsupported("user stats v2", () => flashbots.getUserStatsV2());

const raw = await signed(2);
const options = { maxBlockNumber: block };
const first = checked(await flashbots.sendPrivateTransaction({ signedTransaction: raw }, options));
accepted("send private", first.transaction.hash);
const cancelled = checked(await flashbots.cancelPrivateTransaction(keccak256(raw)));
if (cancelled !== true) throw new Error(`cancelled: ${cancelled}`);
accepted("cancel private", "true");
// It asks for the block number, to which it adds 25.
const second = checked(await flashbots.sendPrivateTransaction({ signedTransaction: await signed(3) }));
accepted("send private without a block", second.transaction.hash);
process.exit(0);
