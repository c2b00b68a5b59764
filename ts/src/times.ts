/** Compares times as the server writes them. Their fractions have no zeros at the end, so that texts are in the order of times without the "Z". */
export function compareTimes(a: string, b: string): number {
	const [x, y] = [a.replace(/Z$/, ""), b.replace(/Z$/, "")];
	return x < y ? -1 : x > y ? 1 : 0;
}
